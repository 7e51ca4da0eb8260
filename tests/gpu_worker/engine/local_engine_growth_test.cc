// Requests that get device memory as they grow give the tokens and log-probabilities, bit by bit,
// of those that have all of it from the beginning, however often they have to wait for some.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

constexpr int64_t kDenseBelow = 2048;

InProcessWorkerOptions SmallModel() {
  InProcessWorkerOptions options = SmallWorker(4096);
  options.max_batch = 4;
  options.wave_index.dense_below = kDenseBelow;
  options.kv_format = kBf16Kv;
  return options;
}

// Dense blocks for one context of `kDenseBelow` tokens that grows, and a few more.
InProcessWorkerOptions LittleMemory(bool preemption) {
  InProcessWorkerOptions options = SmallModel();
  const size_t block_bytes = DensePoolView::BlockBytes(
      {.num_layers = 2, .num_kv_heads = 1, .head_dim = 64, .format = kBf16Kv});
  options.dense_kv_bytes = 48 * block_bytes;
  options.preemption = preemption;
  options.suspended_kv_bytes = preemption ? 40 * block_bytes : 0;
  return options;
}

class GrowthTest : public testing::TestWithParam<bool> {
 protected:
  GrowthTest() : worker_(Options()) {}

  InProcessWorkerOptions Options() {
    InProcessWorkerOptions options = LittleMemory(GetParam());
    options.on_plan = [this](const SchedulerInput& input, const StepPlan&) {
      const bool stalled = std::ranges::any_of(input.requests, [](const RequestDescription& one) {
        return one.phase == RequestPhase::kDecoding && one.free_tokens <= 0;
      });
      if (!stalled) return;
      const absl::MutexLock lock(&mutex_);
      if (!holds_at_stall_) return;
      is_held_ = true;
      mutex_.Await(absl::Condition(
          +[](bool* holds) { return !*holds; }, &holds_at_stall_));
      is_held_ = false;
    };
    return options;
  }
  // From now on the engine stands still where a request waits for memory, until LetGo.
  void HoldAtStall() {
    const absl::MutexLock lock(&mutex_);
    holds_at_stall_ = true;
  }
  bool WaitUntilHeld() {
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_held_), absl::Minutes(2));
  }
  void LetGo() {
    const absl::MutexLock lock(&mutex_);
    holds_at_stall_ = false;
  }

  // Whether it ends before max_tokens is not known: it has a stop string that does not come.
  static GenerationRequest Request(InProcessWorker& worker, int64_t prompt_tokens, uint64_t seed,
                                   int32_t max_tokens, PolicyKind policy) {
    GenerationRequest request = worker.Greedy(
        RandomPrompt(prompt_tokens, worker.config().vocab_size, seed), max_tokens, policy);
    request.sampling.num_logprobs = 0;
    request.sampling.stop = {"no text of random weights has this in it"};
    request.attention.streaming_window = 512;
    return request;
  }
  // Requests of each kind of maximum that stop with their third token: what comes is expected to do
  // so, too.
  void LearnThatAllAreShort() {
    const auto one = worker_.Submit(Request(worker_, 20, 5, 3, PolicyKind::kFull));
    ASSERT_TRUE(one->Wait().status.ok()) << one->Wait().status;
    ASSERT_EQ(one->tokens().size(), 3u);
    for (const int32_t max_tokens : {300, 700, 1100}) {
      for (int i = 0; i < 6; ++i) {
        GenerationRequest request = Request(worker_, 20, 5, max_tokens, PolicyKind::kFull);
        request.sampling.min_tokens = 2;
        request.sampling.stop_token_ids = {one->tokens()[2]};
        const auto sink = worker_.Submit(std::move(request));
        ASSERT_EQ(sink->Wait().reason, FinishReason::kStop);
      }
    }
    ASSERT_TRUE(worker_.WaitUntilIdle());
  }

  absl::Mutex mutex_;
  bool holds_at_stall_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  InProcessWorker worker_;
};

struct Kind {
  PolicyKind policy;
  int64_t prompt_tokens;
  int32_t max_tokens;
};
// Wave: always dense, one that goes over to segments as it grows, one that begins with some.
constexpr Kind kKinds[] = {{PolicyKind::kFull, 300, 1100},     {PolicyKind::kFull, 1500, 700},
                           {PolicyKind::kStreaming, 40, 700},  {PolicyKind::kWave, 200, 1100},
                           {PolicyKind::kWave, 1500, 700},     {PolicyKind::kWave, 2100, 1100},
                           {PolicyKind::kStreaming, 1500, 300}};

TEST_P(GrowthTest, TokensAreThoseOfRequestsThatHadAllTheirMemory) {
  LearnThatAllAreShort();
  std::vector<std::shared_ptr<CollectingSink>> got, want;
  for (uint64_t round = 0; round < 2; ++round) {
    for (const Kind& kind : kKinds) {
      GenerationRequest request =
          Request(worker_, kind.prompt_tokens, 10 + round, kind.max_tokens, kind.policy);
      request.priority = static_cast<int32_t>(got.size() % 2);
      got.push_back(worker_.Submit(std::move(request)));
    }
  }
  for (const auto& sink : got) {
    ASSERT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    EXPECT_EQ(sink->Wait().reason, FinishReason::kLength);
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
  const EngineStats stats = worker_.engine().stats();
  // Whether any had to wait is a matter of who comes when; the next test has it so.
  RecordProperty("memory_stalls", std::to_string(stats.memory_stalls));
  EXPECT_EQ(stats.requests_stalled, 0);
  EXPECT_EQ(stats.dense_blocks_used, 0);
  EXPECT_EQ(stats.meta_blocks_used, 0);

  InProcessWorkerOptions options = SmallModel();
  options.reserves_all = true;
  InProcessWorker undisturbed(options);
  for (uint64_t round = 0; round < 2; ++round) {
    for (const Kind& kind : kKinds) {
      want.push_back(undisturbed.Submit(
          Request(undisturbed, kind.prompt_tokens, 10 + round, kind.max_tokens, kind.policy)));
      EXPECT_TRUE(want.back()->Wait().status.ok());
    }
  }
  EXPECT_EQ(undisturbed.engine().stats().memory_stalls, 0u);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i]->tokens(), want[i]->tokens()) << "request " << i;
    EXPECT_EQ(got[i]->logprobs(), want[i]->logprobs()) << "request " << i;
  }
}

// What is short is free again whenever somebody ends, however he does.
TEST_P(GrowthTest, WhoWaitsForMemoryCanEndAndLetsOthersGoOn) {
  LearnThatAllAreShort();
  std::vector<std::pair<std::string, std::shared_ptr<CollectingSink>>> live;
  const auto add = [&] {
    GenerationRequest request = Request(worker_, 200, 3, 1100, PolicyKind::kFull);
    const std::string id = request.request_id;
    live.emplace_back(id, worker_.Submit(std::move(request)));
  };
  HoldAtStall();
  for (int i = 0; i < 4; ++i) add();
  const bool held = WaitUntilHeld();
  // The last ones wait.
  if (held) {
    for (size_t i = 2; i < 4; ++i) worker_.engine().Abort(live[i].first);
  }
  LetGo();
  ASSERT_TRUE(held) << "nobody waited for memory";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(live.back().second->Wait().reason, FinishReason::kCancelled);
    live.pop_back();
  }
  add();
  for (const auto& [id, sink] : live) EXPECT_EQ(sink->Wait().reason, FinishReason::kLength);
  EXPECT_GT(worker_.engine().stats().memory_stalls, 0u);
  InProcessWorkerOptions options = SmallModel();
  options.reserves_all = true;
  InProcessWorker undisturbed(options);
  const auto want = undisturbed.Submit(Request(undisturbed, 200, 3, 1100, PolicyKind::kFull));
  EXPECT_TRUE(want->Wait().status.ok());
  EXPECT_EQ(live[0].second->tokens(), want->tokens());
  EXPECT_EQ(live[0].second->tokens(), live[1].second->tokens());
  EXPECT_EQ(live[0].second->tokens(), live[2].second->tokens());
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

// Continuations that are given take memory as they go, too, and go back to its beginning.
TEST_P(GrowthTest, WhatIsMeasuredIsTheSame) {
  InProcessWorkerOptions options = SmallModel();
  options.reserves_all = true;
  InProcessWorker undisturbed(options);
  std::vector<std::map<int32_t, std::vector<OutputToken>>> measured;
  for (InProcessWorker* const worker : {&undisturbed, &worker_}) {
    GenerationRequest request = Request(*worker, 300, 8, 600, PolicyKind::kFull);
    request.sampling.stop.clear();
    for (const uint64_t seed : {1, 2, 3}) {
      const auto tokens = static_cast<int64_t>(200 * seed);
      request.continuations.push_back(RandomPrompt(tokens, worker->config().vocab_size, seed));
    }
    const auto sink = worker->Submit(std::move(request));
    ASSERT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    measured.push_back(sink->measured());
  }
  ASSERT_EQ(measured[0].size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(measured[0][i].size(), measured[1][i].size());
    for (size_t t = 0; t < measured[0][i].size(); ++t) {
      ASSERT_EQ(measured[0][i][t].logprob, measured[1][i][t].logprob) << i << ", " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Preemption, GrowthTest, testing::Bool());

}  // namespace
}  // namespace retroinfer
