#include "kv_store_service/server/kv_store_rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

class KvStoreRpcTest : public testing::Test {
 protected:
  KvStoreRpcTest()
      : store_({}, StateFile(folder_.path() + "/state")), rpc_(&store_, "/the/socket") {
    auto arena = common::SealedMemory::Create("test arena", 8 << 20, 1);
    store_.leases().SetArena(*std::move(arena));
    v1::AttachWorkerRequest request;
    request.mutable_geometry()->set_num_layers(kTinyGeometry.num_layers);
    request.mutable_geometry()->set_num_kv_heads(kTinyGeometry.num_kv_heads);
    request.mutable_geometry()->set_head_dim(kTinyGeometry.head_dim);
    request.mutable_geometry()->set_kv_format(2);
    request.set_model_fingerprint("model");
    request.set_num_slots(16);
    request.set_log_capacity(64);
    request.set_request_capacity(64);
    v1::AttachWorkerResponse response;
    EXPECT_TRUE(rpc_.AttachWorker(nullptr, &request, &response).ok());
    EXPECT_EQ(response.descriptor_socket_path(), "/the/socket");
    EXPECT_EQ(response.arena_bytes(), 8u << 20);
    token_ = response.attach_token();
    auto pair = store_.leases().ClaimDescriptors(token_, 77);
    EXPECT_TRUE(pair.ok());
    arena_ = *common::SealedMemory::Adopt(std::move(pair->arena), 8 << 20);
  }

  v1::ReserveExtentsResponse Reserve(uint64_t sequence, int num_segments) {
    v1::ReserveExtentsRequest request;
    request.set_attach_token(token_);
    request.set_call_number(++call_number_);
    request.set_sequence_id(sequence);
    for (int i = 0; i < num_segments; ++i) request.add_segment_tokens(1024);
    v1::ReserveExtentsResponse response;
    const grpc::Status status = rpc_.ReserveExtents(nullptr, &request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  TemporaryFolder folder_;
  KvStore store_;
  KvStoreRpc rpc_;
  std::string token_;
  common::SealedMemory arena_;
  uint64_t call_number_ = 0;
};

// The numbers on the wire are those that workers sent when the field was an enum of element types.
TEST(KvGeometryMessageTest, KeepsItsBytes) {
  v1::KvGeometry geometry;
  geometry.set_num_layers(2);
  geometry.set_num_kv_heads(2);
  geometry.set_head_dim(64);
  geometry.set_kv_format(2);
  EXPECT_EQ(geometry.SerializeAsString(), std::string("\x08\x02\x10\x02\x18\x40\x20\x02"));
}

TEST_F(KvStoreRpcTest, CarriesASequenceFromReservationToRelease) {
  const auto reserved = Reserve(5, 2);
  ASSERT_EQ(reserved.extents_size(), 2);
  const v1::Extent& extent = reserved.extents(0);
  const uint32_t used = WriteSegment(
      arena_.bytes().subspan(extent.first_page() * kPageBytes, extent.num_pages() * kPageBytes),
      kTinyGeometry, 4, 1024);
  v1::CommitSegmentsRequest commit;
  commit.set_attach_token(token_);
  commit.set_call_number(++call_number_);
  commit.set_sequence_id(5);
  v1::Segment* segment = commit.add_segments();
  segment->set_extent_id(extent.extent_id());
  segment->set_token_begin(4);
  segment->set_token_count(1024);
  v1::CommitSegmentsResponse committed;
  ASSERT_TRUE(rpc_.CommitSegments(nullptr, &commit, &committed).ok());
  EXPECT_EQ(committed.extents(0).num_pages(), used);

  v1::FindClustersRequest find;
  find.set_extent_id(extent.extent_id());
  find.mutable_head()->set_layer(1);
  v1::FindClustersResponse found;
  ASSERT_TRUE(rpc_.FindClusters(nullptr, &find, &found).ok());
  EXPECT_EQ(found.num_clusters(), 256u);
  EXPECT_EQ(found.num_empty(), 4u);
  EXPECT_EQ(found.max_tokens(), 32u);
  EXPECT_EQ(found.tokens_per_page(), kTinyGeometry.tokens_per_page());
  ASSERT_EQ(found.clusters_size(), 64);
  EXPECT_EQ(found.clusters(0).num_tokens(), 15u);
  EXPECT_GT(found.clusters(0).first_page(), extent.first_page());
  EXPECT_EQ(found.clusters(0).num_pages(), kTinyGeometry.pages_of(15));

  v1::GetStatsResponse stats;
  EXPECT_TRUE(rpc_.GetStats(nullptr, nullptr, &stats).ok());
  EXPECT_TRUE(stats.worker_attached());
  EXPECT_EQ(stats.worker_pid(), 77);
  EXPECT_EQ(stats.geometry().head_dim(), 64u);
  EXPECT_EQ(stats.geometry().kv_format(), 2u);
  EXPECT_EQ(stats.model_fingerprint(), "model");
  EXPECT_EQ(stats.committed_segments(), 1u);
  EXPECT_EQ(stats.reserved_extents(), 1u);

  v1::ReleaseSequenceRequest release;
  release.set_attach_token(token_);
  release.set_call_number(++call_number_);
  release.set_sequence_id(5);
  v1::ReleaseSequenceResponse released;
  EXPECT_TRUE(rpc_.ReleaseSequence(nullptr, &release, &released).ok());
  EXPECT_EQ(released.freed_pages(), used + reserved.extents(1).num_pages());
}

TEST_F(KvStoreRpcTest, ListsInPages) {
  Reserve(1, 2);
  Reserve(2, 1);
  v1::ListSegmentsRequest request;
  request.set_max_results(2);
  v1::ListSegmentsResponse first;
  ASSERT_TRUE(rpc_.ListSegments(nullptr, &request, &first).ok());
  ASSERT_EQ(first.segments_size(), 2);
  EXPECT_EQ(first.segments(0).sequence_id(), 1u);
  EXPECT_EQ(first.segments(0).token_count(), 1024u);
  EXPECT_FALSE(first.segments(0).committed());
  request.set_after_extent_id(first.next_after_extent_id());
  v1::ListSegmentsResponse second;
  ASSERT_TRUE(rpc_.ListSegments(nullptr, &request, &second).ok());
  ASSERT_EQ(second.segments_size(), 1);
  EXPECT_EQ(second.segments(0).sequence_id(), 2u);
  EXPECT_EQ(second.next_after_extent_id(), 0u);
}

TEST_F(KvStoreRpcTest, RefusesRowsAndNamesThatAreNone) {
  const auto code = [&](const auto& fill) {
    v1::ReserveExtentsRequest request;
    request.set_attach_token(token_);
    request.set_call_number(++call_number_);
    request.set_sequence_id(1);
    request.mutable_rows()->set_token_begin(4);
    request.mutable_rows()->set_texts(std::string(64, 'x'));
    for (int i = 0; i < 64; ++i) request.mutable_rows()->add_token_ids(i);
    fill(request);
    v1::ReserveExtentsResponse response;
    return rpc_.ReserveExtents(nullptr, &request, &response).error_code();
  };
  const std::string name(32, 'n');
  const auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  EXPECT_EQ(code([](auto&) {}), grpc::StatusCode::OK);
  EXPECT_EQ(code([&](auto& r) { r.set_made_by(name); }), grpc::StatusCode::OK);
  EXPECT_EQ(code([&](auto& r) { r.mutable_rows()->set_generated_name(name); }),
            grpc::StatusCode::OK);
  EXPECT_EQ(code([](auto& r) { r.mutable_rows()->set_texts(std::string(63, 'x')); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.mutable_rows()->set_texts(""); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.mutable_rows()->set_generated_name("short"); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_made_by("short"); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.add_segment_tokens(1024); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.mutable_rows()->add_segments()->set_token_begin(4); }), kInvalid);
  const auto named = [&](const auto& fill) {
    return code([&](auto& r) {
      r.clear_rows();
      r.add_segment_tokens(64);
      v1::SegmentIdentity* identity = r.add_identities();
      identity->set_name(name);
      identity->set_parent(name);
      identity->set_salt_hash(name);
      fill(r, *identity);
    });
  };
  EXPECT_EQ(named([](auto&, auto& identity) { identity.set_made_by(std::string(32, 'm')); }),
            kInvalid);  // all three or none
  EXPECT_EQ(named([](auto& r, auto&) { r.set_texts(std::string(64, 'x')); }), kInvalid);
  EXPECT_EQ(named([](auto& r, auto&) { r.set_token_begin(5); }), kInvalid);
  EXPECT_EQ(named([](auto& r, auto&) { r.set_token_begin(4 + 64); }), grpc::StatusCode::OK);
}

TEST_F(KvStoreRpcTest, ReturnsTheStoresErrors) {
  v1::ReserveExtentsRequest reserve;
  v1::ReserveExtentsResponse reserved;
  EXPECT_EQ(rpc_.ReserveExtents(nullptr, &reserve, &reserved).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  reserve.set_attach_token(token_);
  reserve.set_call_number(1);
  for (int i = 0; i < 1000; ++i) reserve.add_segment_tokens(8192);
  EXPECT_EQ(rpc_.ReserveExtents(nullptr, &reserve, &reserved).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::CommitSegmentsRequest commit;
  v1::CommitSegmentsResponse committed;
  EXPECT_EQ(rpc_.CommitSegments(nullptr, &commit, &committed).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::ReleaseSequenceRequest release;
  v1::ReleaseSequenceResponse released;
  EXPECT_EQ(rpc_.ReleaseSequence(nullptr, &release, &released).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::DeclareSegmentsRequest declare;
  declare.set_attach_token(token_);
  v1::DeclareSegmentsResponse declared;
  EXPECT_EQ(rpc_.DeclareSegments(nullptr, &declare, &declared).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::ListDurableSegmentsRequest list;
  v1::ListDurableSegmentsResponse listed;
  EXPECT_EQ(rpc_.ListDurableSegments(nullptr, &list, &listed).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::FindClustersRequest find;
  find.set_extent_id(99);
  v1::FindClustersResponse found;
  EXPECT_EQ(rpc_.FindClusters(nullptr, &find, &found).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::AttachWorkerRequest attach;
  v1::AttachWorkerResponse attached;
  EXPECT_EQ(rpc_.AttachWorker(nullptr, &attach, &attached).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  attach.mutable_geometry()->set_kv_format(99);
  const grpc::Status unknown = rpc_.AttachWorker(nullptr, &attach, &attached);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(unknown.error_message().find("KV format 99 is not known"), std::string::npos);
  v1::DetachWorkerRequest detach;
  v1::DetachWorkerResponse detached;
  EXPECT_EQ(rpc_.DetachWorker(nullptr, &detach, &detached).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  detach.set_attach_token(token_);
  EXPECT_TRUE(rpc_.DetachWorker(nullptr, &detach, &detached).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
