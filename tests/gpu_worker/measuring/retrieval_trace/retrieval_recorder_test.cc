#include "gpu_worker/measuring/retrieval_trace/retrieval_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/backends.h"
#include "tests/support/decoded_trace.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using test_support::DecodedTrace;

constexpr uint32_t kLayers = 2, kHeads = 2;
constexpr int64_t kMaxRetrieved = 64, kMaxPages = 3000;

class RetrievalRecorderTest : public ::testing::TestWithParam<test_support::BackendParam> {
 protected:
  RetrievalRecorderTest()
      : path_(std::filesystem::temp_directory_path() /
              ("retroinfer_recorder_" + std::to_string(::getpid()))) {
    first_.num_indexed_blocks = second_.num_indexed_blocks = 2;
    first_.num_tokens = 3000;
    second_.num_tokens = 2000;
  }
  ~RetrievalRecorderTest() override { std::filesystem::remove(path_); }

  void Open(uint64_t limit, int64_t max_clusters) {
    auto file = TraceFile::Open(path_, TraceEncoder::kMagic, limit);
    ASSERT_TRUE(file.ok()) << file.status();
    auto recorder = RetrievalRecorder::Create(
        *backend_->device,
        {.geometry = {.num_layers = kLayers, .num_kv_heads = kHeads, .head_dim = 64},
         .max_batch = 3,
         .max_clusters = max_clusters},
        *std::move(file));
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
  }
  DecodedTrace Close() {
    recorder_.reset();
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return DecodedTrace(text.str());
  }

  // What one row of a layer retrieves: clusters with their pages, of which the first ones missed.
  using List = std::vector<RetrievedCluster>;
  void CopyLayer(uint32_t layer, const std::vector<List>& lists) {
    std::vector<int32_t> retrieved(lists.size() * kMaxRetrieved, -1);
    std::vector<int32_t> num_retrieved, num_pages;
    std::vector<PageRef> pages(lists.size() * kMaxPages, PageRef{nullptr, -1, 0xffffffff});
    for (size_t i = 0; i < lists.size(); ++i) {
      size_t next = 0;
      for (size_t j = 0; j < lists[i].size(); ++j) {
        const RetrievedCluster& cluster = lists[i][j];
        retrieved[i * kMaxRetrieved + j] = static_cast<int32_t>(cluster.cluster);
        for (uint32_t place = 0; place < cluster.num_pages; ++place) {
          pages[i * kMaxPages + next++] = {nullptr, 4,
                                           PageOrigin(place, place < cluster.num_missed)};
        }
      }
      num_retrieved.push_back(static_cast<int32_t>(lists[i].size()));
      num_pages.push_back(static_cast<int32_t>(next));
    }
    const DeviceBuffer on_device[] = {data_.Upload(retrieved), data_.Upload(num_retrieved),
                                      data_.Upload(pages), data_.Upload(num_pages)};
    ASSERT_TRUE(recorder_
                    ->Copy(*backend_->stream, {.layer = layer,
                                               .batch = static_cast<int32_t>(lists.size() / kHeads),
                                               .max_retrieved = kMaxRetrieved,
                                               .retrieved = on_device[0].as<const int32_t>(),
                                               .num_retrieved = on_device[1].as<const int32_t>(),
                                               .max_pages = kMaxPages,
                                               .pages = on_device[2].as<const PageRef>(),
                                               .num_pages = on_device[3].as<const int32_t>()})
                    .ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }
  // The same for each layer.
  void Step(std::vector<SequenceKv*> batch, const std::vector<List>& lists) {
    recorder_->BeginStep(batch, kMaxRetrieved);
    for (uint32_t layer = 0; layer < kLayers; ++layer) CopyLayer(layer, lists);
    for (SequenceKv* const sequence : batch) ++sequence->num_tokens;
  }

  const std::string path_;
  std::unique_ptr<test_support::Backend> backend_ = GetParam().create();
  test_support::DeviceData data_{*backend_};
  std::unique_ptr<RetrievalRecorder> recorder_;
  SequenceKv first_{.sequence_id = 11}, second_{.sequence_id = 22};
};

TEST_P(RetrievalRecorderTest, RecordsEverySequencesStepsWithPagesAndMisses) {
  Open(1 << 20, 64);
  const List a = {{90, 4, 0}, {7, 5, 5}, {31, 1, 1}}, b = {{0, 6, 2}}, none;
  Step({&first_, &second_}, {a, b, none, a});
  Step({&first_}, {b, a});
  recorder_->Release(first_);
  recorder_->Release(first_);
  recorder_->BeginStep({}, 0);
  const DecodedTrace trace = Close();
  EXPECT_EQ(trace.num_layers, kLayers);
  EXPECT_EQ(trace.num_kv_heads, kHeads);
  EXPECT_EQ(trace.released, std::vector<uint64_t>{11});
  EXPECT_EQ(trace.end, 0);
  ASSERT_EQ(trace.steps.size(), 3u);
  EXPECT_EQ(trace.steps[0].sequence_id, 11u);
  EXPECT_EQ(trace.steps[0].num_tokens, 3000u);
  EXPECT_EQ(trace.steps[0].num_clusters, 128u);
  EXPECT_EQ(trace.steps[1].sequence_id, 22u);
  EXPECT_EQ(trace.steps[2].num_tokens, 3001u);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto& clusters = trace.steps[0].heads[layer * kHeads].clusters;
    ASSERT_EQ(clusters.size(), 3u);
    EXPECT_EQ(clusters[0].cluster, 7u);
    EXPECT_EQ(clusters[0].num_pages, 5u);
    EXPECT_EQ(clusters[0].num_missed, 5u);
    EXPECT_EQ(clusters[1].cluster, 31u);
    EXPECT_EQ(clusters[2].num_missed, 0u);
    EXPECT_EQ(trace.steps[0].heads[layer * kHeads + 1].clusters[0].num_missed, 2u);
    EXPECT_TRUE(trace.steps[1].heads[layer * kHeads].clusters.empty());
    EXPECT_EQ(trace.steps[2].heads[layer * kHeads + 1].clusters[2].cluster, 90u);
  }
}

TEST_P(RetrievalRecorderTest, RowsOfOneSequenceFollowEachOther) {
  Open(1 << 20, 64);
  const List a = {{1, 4, 0}};
  Step({&first_, &first_, &second_}, std::vector<List>(6, a));
  const DecodedTrace trace = Close();
  ASSERT_EQ(trace.steps.size(), 3u);
  EXPECT_EQ(trace.steps[1].num_tokens, 3001u);
  EXPECT_EQ(trace.steps[2].num_tokens, 2000u);
}

TEST_P(RetrievalRecorderTest, WhatIsTooMuchIsLeftOutAndCounted) {
  Open(1 << 20, 2);
  // Room for two clusters, and 32 pages.
  Step({&first_}, {{{5, 30, 1}, {6, 30, 30}, {7, 1, 0}}, {{8, 2, 0}}});
  const DecodedTrace trace = Close();
  ASSERT_EQ(trace.steps.size(), 1u);
  const HeadRetrieval& head = trace.steps[0].heads[0];
  EXPECT_EQ(head.num_left_out, 1u);
  ASSERT_EQ(head.clusters.size(), 2u);
  EXPECT_EQ(head.clusters[0].num_pages, 30u);
  EXPECT_EQ(head.clusters[1].num_pages, 0u) << "not known";
  EXPECT_EQ(trace.steps[0].heads[1].num_left_out, 0u);
}

TEST_P(RetrievalRecorderTest, TheLimitEndsTheTraceWithAWord) {
  Open(200, 64);
  for (uint32_t i = 0; i < 40; ++i) Step({&first_}, {{{i, 4, 1}}, {{i + 1, 4, 1}}});
  EXPECT_LE(std::filesystem::file_size(path_), 200u);
  const DecodedTrace trace = Close();
  EXPECT_EQ(trace.end, 1);
  EXPECT_GT(trace.steps.size(), 2u);
  EXPECT_LT(trace.steps.size(), 40u);
  EXPECT_LE(std::filesystem::file_size(path_), 200u);
}

INSTANTIATE_TEST_SUITE_P(Backends, RetrievalRecorderTest,
                         ::testing::ValuesIn(test_support::AvailableBackends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retroinfer
