// Requests under policy wave where clusters are packed (--index-dtype packed).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/wave_index/retrieval_quality.h"
#include "gpu_worker/wave_index/segment_plan.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

constexpr int64_t kDenseBelow = 2048;  // so that short prompts have an index

InProcessWorkerOptions ModelIn(const KvFormat& format) {
  const RetrievalShare share = RetrievalFor(RetrievalQuality::kStandard, format);
  InProcessWorkerOptions options = SmallWorker();
  options.precision = ComputePrecision::kF32;
  options.kv_format = format;
  options.wave_index = {.dense_below = kDenseBelow,
                        .radius_weight = share.radius_weight,
                        .min_retrieved = share.min_retrieved};
  return options;
}

GenerationRequest RequestOf(InProcessWorker& worker, int64_t prompt_tokens, uint64_t seed,
                            int32_t max_tokens, PolicyKind policy = PolicyKind::kWave) {
  GenerationRequest request = worker.Greedy(
      RandomPrompt(prompt_tokens, worker.config().vocab_size, seed), max_tokens, policy);
  request.sampling.num_logprobs = 0;
  return request;
}

// Formats that differ in nothing but where clusters begin.
struct Pair {
  KvFormat packed;
  KvFormat apart;
};

class LocalEnginePackedTest : public testing::TestWithParam<Pair> {
 protected:
  // The same KV and the same clusters, summed up in another order.
  static void ExpectNear(const CollectingSink& one, const CollectingSink& other) {
    EXPECT_EQ(one.tokens(), other.tokens());
    const auto of_one = one.logprobs(), of_other = other.logprobs();
    ASSERT_EQ(of_one.size(), of_other.size());
    for (size_t i = 0; i < of_one.size(); ++i) EXPECT_NEAR(of_one[i], of_other[i], 1e-3) << i;
  }
};

TEST_P(LocalEnginePackedTest, AnswersAreThoseOfClustersThatLieApart) {
  InProcessWorker packed(ModelIn(GetParam().packed)), apart(ModelIn(GetParam().apart));
  if (packed.device().info().backend != "cpu") GTEST_SKIP() << "a GPU computes in bf16";
  // Later segments go live while it generates.
  for (const int64_t length : {3000, 9000}) {
    const auto one = packed.Submit(RequestOf(packed, length, 3, 300));
    const auto other = apart.Submit(RequestOf(apart, length, 3, 300));
    ASSERT_TRUE(one->Wait().status.ok()) << one->Wait().status;
    ASSERT_TRUE(other->Wait().status.ok()) << other->Wait().status;
    ExpectNear(*one, *other);
  }
  EXPECT_EQ(packed.engine().stats().segments_built, apart.engine().stats().segments_built);
  EXPECT_GT(packed.engine().stats().segments_built, 3u);
}

TEST_P(LocalEnginePackedTest, AllClustersAreFullAttention) {
  InProcessWorker worker(ModelIn(GetParam().packed));
  if (worker.device().info().backend != "cpu") GTEST_SKIP() << "a GPU computes in bf16";
  GenerationRequest wave = RequestOf(worker, 3000, 4, 40);
  wave.attention.retrieval_ratio = 1.0;
  const auto wave_sink = worker.Submit(std::move(wave));
  const auto full_sink = worker.Submit(RequestOf(worker, 3000, 4, 40, PolicyKind::kFull));
  ASSERT_TRUE(wave_sink->Wait().status.ok()) << wave_sink->Wait().status;
  ASSERT_TRUE(full_sink->Wait().status.ok()) << full_sink->Wait().status;
  ExpectNear(*wave_sink, *full_sink);
}

TEST_P(LocalEnginePackedTest, WhatIsFoundGivesTheSameBits) {
  InProcessWorker worker(ModelIn(GetParam().packed));
  const auto cold = worker.Submit(RequestOf(worker, 3500, 5, 60));
  ASSERT_TRUE(cold->Wait().status.ok()) << cold->Wait().status;
  const auto warm = worker.Submit(RequestOf(worker, 3500, 5, 60));
  ASSERT_TRUE(warm->Wait().status.ok()) << warm->Wait().status;
  EXPECT_GT(warm->Wait().cached_tokens, 3000);
  EXPECT_EQ(warm->tokens(), cold->tokens());
  EXPECT_EQ(warm->logprobs(), cold->logprobs());
}

// The most requests that had extents at once.
class MostAtOnce {
 public:
  // A plan is made of nothing before Begin().
  void Watch(const SchedulerInput& input) {
    begun_.WaitForNotification();
    most_ = std::max(most_, std::ranges::count_if(input.requests, [](const auto& request) {
                       return request.phase >= RequestPhase::kReady &&
                              request.phase <= RequestPhase::kDecoding;
                     }));
  }
  void Begin() { begun_.Notify(); }
  // REQUIRES: the engine has ended.
  int64_t most() const { return most_; }

 private:
  absl::Notification begun_;
  int64_t most_ = 0;
};

size_t PagesOf(const KvGeometry& geometry, int64_t prompt_tokens, int64_t total_tokens) {
  size_t pages = 0;
  for (const PlannedSegment& segment : PlanSegments(prompt_tokens, total_tokens, kDenseBelow)) {
    pages += SegmentLayout(geometry, segment.num_tokens).max_pages;
  }
  return pages;
}

// Six requests fit to the page, where clusters that lie apart would let fewer begin. Answers are
// long enough that the first is not over before the last prompt has its turn.
TEST_P(LocalEnginePackedTest, AnArenaHoldsMoreRequestsAtOnce) {
  constexpr int kRequests = 6;
  constexpr int64_t kPrompt = 2200, kAnswer = 500;
  InProcessWorkerOptions options = ModelIn(GetParam().packed);
  const ModelConfig config = InProcessWorker(options).config();
  const size_t pages =
      kRequests * PagesOf(config.geometry(GetParam().packed), kPrompt, kPrompt + kAnswer);
  EXPECT_LT(pages / PagesOf(config.geometry(GetParam().apart), kPrompt, kPrompt + kAnswer),
            size_t{kRequests});
  options.arena_bytes = pages * kPageBytes;
  MostAtOnce at_once;
  options.on_plan = [&](const SchedulerInput& input, StepPlan&) { at_once.Watch(input); };
  InProcessWorker worker(options);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t i = 0; i < kRequests; ++i) {
    sinks.push_back(worker.Submit(RequestOf(worker, kPrompt, 20 + i, kAnswer)));
  }
  at_once.Begin();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
  worker.EndEngine();
  EXPECT_EQ(at_once.most(), kRequests);
}

INSTANTIATE_TEST_SUITE_P(Formats, LocalEnginePackedTest,
                         testing::Values(Pair{kInt8PackedKv, kInt8Kv},
                                         Pair{kBf16PackedKv, kBf16Int8Kv}),
                         [](const auto& info) { return std::string(info.param.packed.name); });

}  // namespace
}  // namespace retroinfer
