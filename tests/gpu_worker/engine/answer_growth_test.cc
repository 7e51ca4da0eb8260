// Answers whose length nobody has named: they write what answers of a named length write, and hold
// memory for what they have written.
#include "gpu_worker/engine/answer_growth.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/kv/segment_layout.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/wave_index/segment_plan.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"
#include "tests/support/suspending.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

constexpr int64_t kDenseBelow = 2048;
constexpr int32_t kLong = 3 * AnswerGrowth::kStretch + 700;

class AnswerGrowthTest : public testing::Test {
 protected:
  InProcessWorkerOptions Options() {
    InProcessWorkerOptions options = SmallWorker(65536);
    options.max_batch = 4;
    options.wave_index.dense_below = kDenseBelow;
    options.kv_format = kBf16Kv;
    options.preemption = true;
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      SuspendSome(input, plan);
    };
    return options;
  }
  void SuspendSome(const SchedulerInput& input, StepPlan& plan) {
    if (!suspends_) return;
    for (const RequestDescription& request : input.requests) {
      const bool fits = request.suspended_blocks <= input.free_suspended_blocks;
      if (!test_support::MaySuspend(plan, request) || !fits || ++chances_ % 150 != 0) continue;
      plan.suspend.push_back(request.id);
      return;
    }
  }
  static GenerationRequest Request(InProcessWorker& worker, int64_t prompt_tokens, bool open_ended,
                                   int32_t max_tokens = kLong,
                                   PolicyKind policy = PolicyKind::kWave) {
    GenerationRequest request = worker.Greedy(
        RandomPrompt(prompt_tokens, worker.config().vocab_size, 3), max_tokens, policy);
    request.open_ended = open_ended;
    request.cache_salt = open_ended ? "open" : "named";
    request.sampling.num_logprobs = 0;
    return request;
  }
  static uint32_t PagesInUse(InProcessWorker& worker) {
    return worker.store().arena_pages() - worker.store().free_pages();
  }
  static void AwaitTokens(const CollectingSink& sink, size_t count) {
    while (!sink.finished() && sink.tokens().size() < count) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_GE(sink.tokens().size(), count);
  }
  // Both write the same, bit by bit.
  void Compare(int64_t prompt_tokens, PolicyKind policy) {
    const auto named = worker_.Submit(Request(worker_, prompt_tokens, false, kLong, policy));
    named->Wait();
    const auto open = worker_.Submit(Request(worker_, prompt_tokens, true, kLong, policy));
    const GenerationResult& result = open->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.reason, FinishReason::kLength);
    EXPECT_EQ(result.completion_tokens, kLong);
    EXPECT_EQ(open->tokens(), named->tokens());
    EXPECT_EQ(open->logprobs(), named->logprobs());
    EXPECT_TRUE(worker_.WaitUntilIdle());
  }

  std::atomic<bool> suspends_ = false;
  uint64_t chances_ = 0;  // the engine's thread
  InProcessWorker worker_{Options()};
};

TEST_F(AnswerGrowthTest, WritesWhatAnAnswerOfANamedLengthWrites) {
  Compare(300, PolicyKind::kWave);  // dense, until the answer has made it long
  Compare(2500, PolicyKind::kWave);
}

TEST_F(AnswerGrowthTest, TheOtherPoliciesGrow) {
  Compare(300, PolicyKind::kFull);
  Compare(300, PolicyKind::kStreaming);
}

TEST_F(AnswerGrowthTest, GrowsOverSuspensions) {
  suspends_ = true;
  Compare(2500, PolicyKind::kWave);
  EXPECT_GT(worker_.engine().stats().preemptions, 0u);
}

// A short answer holds what a stretch needs, not what the model's length would.
TEST_F(AnswerGrowthTest, ReservesAStretchAtATime) {
  GenerationRequest request = Request(worker_, 2500, true, 60'000);
  const std::string id = request.request_id;
  const auto sink = worker_.Submit(request);
  AwaitTokens(*sink, 1);
  const uint32_t begun = PagesInUse(worker_);
  EXPECT_GT(begun, 0u);
  EXPECT_LT(begun, worker_.store().arena_pages() / 8);
  AwaitTokens(*sink, 2 * AnswerGrowth::kStretch);
  EXPECT_GT(PagesInUse(worker_), begun);
  worker_.engine().Abort(id);
  sink->Wait();
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

// The arena holds the prompt and one stretch.
TEST_F(AnswerGrowthTest, EndsWhereTheArenaIsFull) {
  InProcessWorkerOptions options = Options();
  options.arena_bytes = 0;
  const KvGeometry geometry = worker_.config().geometry(options.kv_format);
  for (const PlannedSegment& segment :
       PlanSegments(2500, 2500 + AnswerGrowth::kStretch, kDenseBelow)) {
    options.arena_bytes +=
        SegmentLayout(geometry, segment.num_tokens).max_pages * size_t{kPageBytes};
  }
  InProcessWorker small(options);
  const auto sink = small.Submit(Request(small, 2500, true));
  const GenerationResult& result = sink->Wait();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.completion_tokens, AnswerGrowth::kStretch);
  EXPECT_TRUE(small.WaitUntilIdle());
}

// The store's answer is late; an answer that comes before the stretch ends is in time.
TEST_F(AnswerGrowthTest, GrowsOnceTheStoreHasAnswered) {
  const auto sink = worker_.Submit(Request(worker_, 2500, true));
  AwaitTokens(*sink, AnswerGrowth::kStretch - AnswerGrowth::kAhead - 100);
  worker_.store().HoldAnswers();
  AwaitTokens(*sink, AnswerGrowth::kStretch - AnswerGrowth::kAhead + 8);
  EXPECT_GT(worker_.store().num_held_answers(), 0u);
  worker_.store().LetAnswersGo();
  EXPECT_EQ(sink->Wait().completion_tokens, kLong);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(AnswerGrowthTest, AnAbortWhileTheStoreIsAskedLeavesNothingBehind) {
  GenerationRequest request = Request(worker_, 2500, true);
  const std::string id = request.request_id;
  const auto sink = worker_.Submit(request);
  AwaitTokens(*sink, AnswerGrowth::kStretch - AnswerGrowth::kAhead - 100);
  worker_.store().HoldAnswers();
  AwaitTokens(*sink, AnswerGrowth::kStretch - AnswerGrowth::kAhead + 8);
  EXPECT_GT(worker_.store().num_held_answers(), 0u);
  worker_.engine().Abort(id);
  sink->Wait();
  worker_.store().LetAnswersGo();
  EXPECT_TRUE(worker_.WaitUntilIdle());
  EXPECT_EQ(worker_.store().num_sequences(), 0u);
}

// What cannot hold a stretch beside the prompt gets what fits.
TEST_F(AnswerGrowthTest, IsShortenedWhereNotEvenAStretchFits) {
  InProcessWorkerOptions options = Options();
  options.wave_index.dense_below = 600;
  options.arena_bytes = size_t{192} << 10;
  InProcessWorker small(options);
  GenerationRequest named = Request(small, 100, false);
  auto refused = std::make_shared<CollectingSink>();
  ASSERT_FALSE(small.engine().Submit(named, refused).ok());
  const auto sink = small.Submit(Request(small, 100, true));
  const GenerationResult& result = sink->Wait();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_GE(result.completion_tokens, 500);
  EXPECT_LT(result.completion_tokens, AnswerGrowth::kStretch);
}

}  // namespace
}  // namespace retroinfer
