#include "client/inspect/segment_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace retroinfer::client {
namespace {

namespace v1 = kvstore::v1;
using ::testing::HasSubstr;

// A store that lists two extents a page: a segment, one that leaves at once, and a reserved one.
class FakeStore final : public v1::KvStoreService::Service {
 public:
  FakeStore() {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub_ = v1::KvStoreService::NewStub(server_->InProcessChannel({}));
  }
  v1::KvStoreService::StubInterface& stub() { return *stub_; }
  void FailWith(grpc::Status status) { failure_ = std::move(status); }

  grpc::Status ListSegments(grpc::ServerContext*, const v1::ListSegmentsRequest* request,
                            v1::ListSegmentsResponse* response) override {
    for (uint64_t id = request->after_extent_id() + 1; id <= 3; ++id) {
      if (response->segments_size() == 2) {
        response->set_next_after_extent_id(id - 1);
        return grpc::Status::OK;
      }
      v1::SegmentInfo* info = response->add_segments();
      info->mutable_extent()->set_extent_id(id);
      info->mutable_extent()->set_num_pages(5000);
      info->set_committed(id < 3);
      info->set_token_begin(id < 3 ? 8196 : 0);
      info->set_token_count(1024);
      info->set_num_clusters(id < 3 ? 256 : 0);
      if (id == 1) info->set_name(std::string(32, '\xab'));
    }
    return grpc::Status::OK;
  }
  grpc::Status FindClusters(grpc::ServerContext*, const v1::FindClustersRequest* request,
                            v1::FindClustersResponse* response) override {
    if (!failure_.ok()) return failure_;
    if (request->extent_id() == 2) return {grpc::StatusCode::NOT_FOUND, "it has left"};
    response->set_num_clusters(256);
    response->set_num_empty(4);
    response->set_num_pages(1280);
    response->set_max_tokens(32);
    response->set_tokens_per_page(4);
    return grpc::Status::OK;
  }

 private:
  grpc::Status failure_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::KvStoreService::Stub> stub_;
};

TEST(SegmentReportTest, ReadsAllPagesOfTheListAndLeavesOutWhatHasLeft) {
  FakeStore store;
  std::vector<SegmentLine> lines;
  ASSERT_TRUE(ReadSegments(store.stub(), &lines).ok());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].info.extent().extent_id(), 1u);
  EXPECT_EQ(lines[0].clusters.num_pages(), 1280u);
  EXPECT_EQ(lines[1].info.extent().extent_id(), 3u);
  EXPECT_EQ(lines[1].clusters.num_clusters(), 0u) << "reserved: nothing to look up";
}

TEST(SegmentReportTest, OtherErrorsEndTheReport) {
  FakeStore store;
  store.FailWith({grpc::StatusCode::DATA_LOSS, "changed"});
  std::vector<SegmentLine> lines;
  EXPECT_EQ(ReadSegments(store.stub(), &lines).error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST(SegmentReportTest, TheFillIsTheShareOfPlacesWithATokenInIt) {
  SegmentLine line;
  EXPECT_EQ(PageFill(line), 0);
  line.clusters.set_num_clusters(256);
  line.clusters.set_num_pages(1280);
  line.clusters.set_tokens_per_page(4);
  EXPECT_DOUBLE_EQ(PageFill(line), 0.8);
}

TEST(SegmentReportTest, PrintsALineForEachExtentAndAnObjectForPrograms) {
  FakeStore store;
  std::vector<SegmentLine> lines;
  ASSERT_TRUE(ReadSegments(store.stub(), &lines).ok());
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const out = ::open_memstream(&text, &size);
  PrintSegments(lines, out);
  std::fclose(out);
  const std::string printed(text, size);
  std::free(text);
  EXPECT_THAT(printed, HasSubstr("abababababab"));
  EXPECT_THAT(printed, HasSubstr("8,196"));
  EXPECT_THAT(printed, HasSubstr("80%"));
  EXPECT_THAT(printed, HasSubstr("reserved"));
  const nlohmann::json json = SegmentsJson(lines);
  EXPECT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["cluster_pages"], 1280);
  EXPECT_DOUBLE_EQ(json[0]["page_fill_ratio"], 0.8);
  EXPECT_FALSE(json[1].contains("clusters"));
}

}  // namespace
}  // namespace retroinfer::client
