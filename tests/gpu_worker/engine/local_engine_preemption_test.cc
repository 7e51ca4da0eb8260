// A request that is suspended and resumed gives the tokens and the log-probabilities, bit by bit,
// of one that was left alone, wherever it is in its life when that happens.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
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
constexpr int32_t kSteered = 7;  // priority of requests that the test suspends

// Suspends requests at chosen lengths, or keeps them suspended. Used on the engine's thread
// beside the test's.
class Steering {
 public:
  // At each length from the first one on at which it can, once for each entry.
  void SuspendAt(std::set<int64_t> lengths) {
    absl::MutexLock lock(&mutex_);
    lengths_ = std::move(lengths);
    suspended_at_.clear();
    could_not_.clear();
  }
  void KeepAway(bool away) {
    absl::MutexLock lock(&mutex_);
    keeps_away_ = away;
  }
  // Any request, once in so many steps that it could; 0: none.
  void SuspendAtRandom(uint64_t one_in) {
    absl::MutexLock lock(&mutex_);
    one_in_ = one_in;
  }
  std::vector<int64_t> suspended_at() const {
    absl::MutexLock lock(&mutex_);
    return suspended_at_;
  }
  // Lengths at which it was wanted to and could not.
  std::set<int64_t> could_not() const {
    absl::MutexLock lock(&mutex_);
    return could_not_;
  }
  void OnPlan(const SchedulerInput& input, StepPlan& plan) {
    absl::MutexLock lock(&mutex_);
    if (keeps_away_) plan.resume.clear();
    if (one_in_ > 0) AddAnyone(input, plan);
    for (const RequestDescription& request : input.requests) {
      if (request.priority != kSteered || request.phase != RequestPhase::kDecoding) continue;
      if (lengths_.empty() || request.context < *lengths_.begin()) continue;
      if (request.suspended_blocks > input.free_suspended_blocks) continue;
      if (!request.can_suspend) {
        could_not_.insert(request.context);
        continue;
      }
      lengths_.erase(lengths_.begin());
      suspended_at_.push_back(request.context);
      if (std::find(plan.suspend.begin(), plan.suspend.end(), request.id) == plan.suspend.end()) {
        plan.suspend.push_back(request.id);
      }
    }
  }

 private:
  void AddAnyone(const SchedulerInput& input, StepPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      const auto found = std::find(plan.suspend.begin(), plan.suspend.end(), request.id);
      if (found != plan.suspend.end()) free -= request.suspended_blocks;
    }
    for (const RequestDescription& request : input.requests) {
      if (!test_support::MaySuspend(plan, request) || request.suspended_blocks > free) continue;
      if (random_() % one_in_ != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
  }

  mutable absl::Mutex mutex_;
  uint64_t one_in_ ABSL_GUARDED_BY(mutex_) = 0;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_){17};
  std::set<int64_t> lengths_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> suspended_at_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> could_not_ ABSL_GUARDED_BY(mutex_);
  bool keeps_away_ ABSL_GUARDED_BY(mutex_) = false;
};

InProcessWorkerOptions SmallModel(int32_t max_batch) {
  InProcessWorkerOptions options = SmallWorker();
  options.max_batch = max_batch;
  options.wave_index.dense_below = kDenseBelow;
  options.kv_format = kBf16Kv;
  options.preemption = true;
  return options;
}

class PreemptionTest : public testing::Test {
 protected:
  explicit PreemptionTest(InProcessWorkerOptions options = SmallModel(4))
      : worker_(Steered(std::move(options))) {}

  InProcessWorkerOptions Steered(InProcessWorkerOptions options) {
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      steering_.OnPlan(input, plan);
    };
    return options;
  }
  GenerationRequest Request(std::vector<int32_t> prompt, int32_t max_tokens, PolicyKind policy,
                            std::string salt) {
    GenerationRequest request = worker_.Greedy(std::move(prompt), max_tokens, policy);
    request.cache_salt = std::move(salt);
    request.sampling.num_logprobs = 0;
    request.priority = kSteered;
    return request;
  }
  std::vector<int32_t> Prompt(int64_t length, uint64_t seed = 1) {
    return RandomPrompt(length, worker_.config().vocab_size, seed);
  }
  static void ExpectSame(const CollectingSink& got, const CollectingSink& want) {
    EXPECT_EQ(got.tokens(), want.tokens());
    EXPECT_EQ(got.logprobs(), want.logprobs());
    EXPECT_FALSE(got.logprobs().empty());
  }
  std::shared_ptr<CollectingSink> Run(GenerationRequest request) {
    auto sink = worker_.Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink;
  }
  template <typename Condition>
  void WaitFor(Condition condition) {
    const absl::Time deadline = absl::Now() + absl::Minutes(2);
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void WaitForSuspended(int64_t count) {
    WaitFor([&] { return worker_.engine().stats().requests_suspended == count; });
  }
  void ExpectAllIsFree() {
    EXPECT_TRUE(worker_.WaitUntilIdle());
    WaitFor([&] { return worker_.engine().stats().suspended_kv_bytes == 0; });
    WaitFor([&] { return worker_.engine().stats().table_rows_used == 0; });
    EXPECT_EQ(worker_.engine().stats().requests_suspended, 0);
  }
  // Runs the request alone and undisturbed, then suspended at `lengths`.
  void Compare(const GenerationRequest& request, const std::set<int64_t>& lengths);

  Steering steering_;
  InProcessWorker worker_;
};

void PreemptionTest::Compare(const GenerationRequest& request, const std::set<int64_t>& lengths) {
  steering_.SuspendAt({});
  GenerationRequest undisturbed = request;
  undisturbed.cache_salt += " undisturbed";
  const auto want = Run(undisturbed);
  steering_.SuspendAt(lengths);
  const auto got = Run(request);
  ExpectSame(*got, *want);
  EXPECT_EQ(want->Wait().num_suspensions, 0);
  EXPECT_EQ(got->Wait().num_suspensions, std::ssize(lengths));
  EXPECT_EQ(std::ssize(steering_.suspended_at()), std::ssize(lengths));
  ExpectAllIsFree();
}

// Around the lengths at which segments of generated tokens are begun and go live.
std::set<int64_t> AroundSegments(int64_t prompt_tokens, int64_t total_tokens) {
  std::set<int64_t> lengths = {prompt_tokens + 1};
  for (const PlannedSegment& segment : PlanSegments(prompt_tokens, total_tokens, kDenseBelow)) {
    if (segment.live_at <= prompt_tokens) continue;
    for (const int64_t near : {-1, 0, 1, 2}) {
      lengths.insert(segment.build_at + near);
      lengths.insert(segment.live_at + near);
    }
    lengths.insert(segment.live_at - 20);  // built, and not live yet
  }
  return lengths;
}

TEST_F(PreemptionTest, WaveGoesOnWithTheSameBitsAroundSegmentBoundaries) {
  for (const int64_t length : {2100, 1990}) {  // indexed, and dense until it grows
    const std::set<int64_t> lengths = AroundSegments(length, length + 1200);
    ASSERT_GE(lengths.size(), 10u);
    Compare(Request(Prompt(length), 1200, PolicyKind::kWave, "wave " + std::to_string(length)),
            lengths);
  }
}

TEST_F(PreemptionTest, FullAndStreamingGoOnWithTheSameBits) {
  for (const PolicyKind policy : {PolicyKind::kFull, PolicyKind::kStreaming}) {
    GenerationRequest request = Request(Prompt(333), 300, policy, std::string(PolicyName(policy)));
    request.attention.streaming_window = 128;
    Compare(request, {334, 335, 388, 389, 451, 452, 453, 516, 517, 600});
  }
}

TEST_F(PreemptionTest, SeedsAndPenaltiesGoOn) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
    GenerationRequest request = Request(Prompt(2200, 2), 150, policy, "drawn");
    request.cache_salt += PolicyName(policy);
    request.sampling.temperature = 0.9f;
    request.sampling.seed = 77;
    request.sampling.repetition_penalty = 1.2f;
    request.sampling.frequency_penalty = 0.3f;
    request.sampling.min_tokens = 60;
    request.sampling.logit_bias = {{5, 2.0f}, {9, -3.0f}};
    Compare(request, {2201, 2230, 2259, 2260, 2261, 2300});
  }
}

// Whoever uses the same segments and ends while one is away takes nothing with him.
TEST_F(PreemptionTest, SharedSegmentsStayWhileOneIsAway) {
  const std::vector<int32_t> prompt = Prompt(5000, 3);
  const auto want = Run(Request(prompt, 200, PolicyKind::kWave, "cold"));
  Run(Request(prompt, 1, PolicyKind::kWave, "shared"));
  ExpectAllIsFree();
  steering_.SuspendAt({5050});
  steering_.KeepAway(true);
  const auto away = worker_.Submit(Request(prompt, 200, PolicyKind::kWave, "shared"));
  WaitForSuspended(1);
  EXPECT_GT(worker_.engine().stats().suspended_kv_bytes, 0);
  EXPECT_EQ(worker_.engine().stats().requests_running, 1);
  const auto other = Run(Request(prompt, 200, PolicyKind::kWave, "shared"));
  EXPECT_GT(other->Wait().cached_tokens, 0);
  ExpectSame(*other, *want);
  steering_.KeepAway(false);
  EXPECT_TRUE(away->Wait().status.ok());
  EXPECT_GT(away->Wait().cached_tokens, 0);
  ExpectSame(*away, *want);
  ExpectAllIsFree();
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
}

TEST_F(PreemptionTest, NoRequestIsSuspendedWhileTheBackgroundWorksForIt) {
  auto* const background = dynamic_cast<CpuStream*>(&worker_.background());
  if (background == nullptr) GTEST_SKIP() << "only the CPU's background can be stopped";
  const int64_t length = 2120;  // far from the next segment
  const auto plan = PlanSegments(length, length + 1200, kDenseBelow);
  const PlannedSegment& next = plan.back();
  ASSERT_GT(next.live_at, length);
  const GenerationRequest request = Request(Prompt(length, 4), 1200, PolicyKind::kWave, "stopped");
  GenerationRequest undisturbed = request;
  undisturbed.cache_salt = "left alone";
  undisturbed.request_id += "b";
  const auto want = Run(undisturbed);
  steering_.SuspendAt({next.build_at + 10});
  const auto sink = worker_.Submit(request);
  WaitFor([&] { return sink->tokens().size() >= 2; });
  absl::Notification go;
  ASSERT_TRUE(background->Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  ASSERT_LT(static_cast<int64_t>(sink->tokens().size()) + length, next.build_at);
  // The sequence comes to the end of what it can do without the segment.
  WaitFor([&] { return steering_.could_not().contains(next.live_at - 1); });
  EXPECT_EQ(*steering_.could_not().begin(), next.build_at + 10);
  EXPECT_TRUE(steering_.suspended_at().empty());
  go.Notify();
  EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_EQ(sink->Wait().num_suspensions, 1);
  ExpectSame(*sink, *want);
}

TEST_F(PreemptionTest, WhoIsAwayCanEndThere) {
  const auto suspend = [&](PolicyKind policy, absl::Time deadline) {
    steering_.SuspendAt({2210});
    steering_.KeepAway(true);
    GenerationRequest request = Request(Prompt(2200, 5), 400, policy, "ends");
    request.deadline = deadline;
    auto sink = worker_.Submit(request);
    WaitFor([&] { return sink->finished() || worker_.engine().stats().requests_suspended == 1; });
    return std::pair(sink, request.request_id);
  };
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
    const auto [sink, id] = suspend(policy, absl::InfiniteFuture());
    EXPECT_TRUE(worker_.engine().Abort(id));
    EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
    EXPECT_EQ(sink->Wait().completion_tokens, 11);
    ExpectAllIsFree();
  }
  const auto [late, id] = suspend(PolicyKind::kWave, absl::Now() + absl::Seconds(3));
  EXPECT_EQ(late->Wait().reason, FinishReason::kDeadline);
  ExpectAllIsFree();
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
  const auto [last, last_id] = suspend(PolicyKind::kWave, absl::InfiniteFuture());
  worker_.EndEngine();
  EXPECT_EQ(last->Wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(worker_.store().num_sequences(), 0u);
}

// Requests of all policies and classes, many with segments in common, some cancelled.
TEST_F(PreemptionTest, WhateverIsSuspendedWheneverNothingChangesAndNothingLeaks) {
  constexpr uint64_t kSeed = 31;
  std::mt19937_64 random(kSeed);
  std::vector<GenerationRequest> kinds;
  std::vector<std::vector<int32_t>> want;
  for (const int64_t length : {60, 2200, 3200}) {
    for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
      kinds.push_back(Request(Prompt(length, 5), 150, policy, "common"));
      want.push_back(Run(kinds.back())->tokens());
    }
  }
  steering_.SuspendAtRandom(20);
  struct Live {
    std::string id;
    size_t kind;
    std::shared_ptr<CollectingSink> sink;
  };
  std::vector<Live> live;
  int num_whole = 0;
  for (int i = 0; i < 120; ++i) {
    const size_t kind = random() % kinds.size();
    GenerationRequest request = kinds[kind];
    request.request_id = "random-" + std::to_string(i);
    request.priority = static_cast<int32_t>(random() % 3);
    const std::string id = request.request_id;
    live.push_back({id, kind, worker_.Submit(std::move(request))});
    while (live.size() > 6 || (i == 119 && !live.empty())) {
      const auto one = live.begin() + static_cast<ptrdiff_t>(random() % live.size());
      if (random() % 3 == 0) worker_.engine().Abort(one->id);
      if (one->sink->Wait().reason == FinishReason::kLength) {
        ++num_whole;
        EXPECT_EQ(one->sink->tokens(), want[one->kind]) << "seed " << kSeed << ", " << one->id;
      } else {
        EXPECT_EQ(one->sink->Wait().reason, FinishReason::kCancelled) << one->sink->Wait().status;
      }
      live.erase(one);
    }
  }
  EXPECT_GT(num_whole, 40);
  EXPECT_GT(worker_.engine().stats().preemptions, 100u);
  ExpectAllIsFree();
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
}

TEST_F(PreemptionTest, AStoreThatGoesAwayChangesNothing) {
  const auto want = Run(Request(Prompt(2200, 6), 100, PolicyKind::kWave, "with"));
  steering_.SuspendAt({2220});
  steering_.KeepAway(true);
  const auto sink = worker_.Submit(Request(Prompt(2200, 6), 100, PolicyKind::kWave, "without"));
  WaitForSuspended(1);
  worker_.store().set_attached(false);
  steering_.KeepAway(false);
  EXPECT_TRUE(sink->Wait().status.ok());
  ExpectSame(*sink, *want);
}

TEST_F(PreemptionTest, NoTokenIsShownOnceTheArenaIsSomebodyElses) {
  steering_.SuspendAt({2220});
  steering_.KeepAway(true);
  const auto sink = worker_.Submit(Request(Prompt(2200, 6), 100, PolicyKind::kWave, "taken"));
  WaitForSuspended(1);
  // Those that were drawn before are shown by a thread of their own, which may be behind.
  const auto tokens = static_cast<size_t>(steering_.suspended_at().at(0) - 2200 + 1);
  while (sink->tokens().size() < tokens) absl::SleepFor(absl::Milliseconds(1));
  worker_.store().TakeMemory();
  steering_.KeepAway(false);
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sink->tokens().size(), tokens);
}

// --- As the scheduler has it

class OnePlaceTest : public PreemptionTest {
 protected:
  OnePlaceTest() : PreemptionTest(SmallModel(1)) {}
};

TEST_F(OnePlaceTest, AHigherClassGetsThePlaceAtOnce) {
  const auto want = Run(Request(Prompt(2200, 7), 3000, PolicyKind::kWave, "alone"));
  const auto low = worker_.Submit(Request(Prompt(2200, 7), 3000, PolicyKind::kWave, "beside"));
  WaitFor([&] { return low->tokens().size() >= 20; });
  GenerationRequest request = Request(Prompt(100, 8), 20, PolicyKind::kFull, "");
  request.priority = 0;
  Run(request);
  EXPECT_FALSE(low->finished());
  EXPECT_TRUE(low->Wait().status.ok());
  EXPECT_EQ(low->Wait().num_suspensions, 1);
  ExpectSame(*low, *want);
  const EngineStats stats = worker_.engine().stats();
  EXPECT_EQ(stats.preemptions, 1u);
  EXPECT_EQ(stats.resumptions, 1u);
  ExpectAllIsFree();
}

TEST_F(OnePlaceTest, EqualsWaitForEachOther) {
  const auto first = worker_.Submit(Request(Prompt(100, 7), 1500, PolicyKind::kFull, ""));
  WaitFor([&] { return first->tokens().size() >= 2; });
  const auto second = Run(Request(Prompt(100, 8), 20, PolicyKind::kFull, ""));
  EXPECT_TRUE(first->finished());
  EXPECT_EQ(worker_.engine().stats().preemptions, 0u);
}

// Dense blocks for one context of 2,500 tokens.
InProcessWorkerOptions LittleMemory(size_t suspended_blocks) {
  InProcessWorkerOptions options = SmallModel(4);
  const size_t block_bytes = DensePoolView::BlockBytes(
      {.num_layers = 2, .num_kv_heads = 1, .head_dim = 64, .format = kBf16Kv});
  options.dense_kv_bytes = 44 * block_bytes;
  options.suspended_kv_bytes = suspended_blocks * block_bytes;
  return options;
}

class PreemptionForMemoryTest : public PreemptionTest {
 protected:
  PreemptionForMemoryTest() : PreemptionTest(LittleMemory(44)) {}
};

TEST_F(PreemptionForMemoryTest, AHigherClassGetsTheMemoryAtOnce) {
  const auto want = Run(Request(Prompt(300, 9), 2200, PolicyKind::kFull, ""));
  const auto low = worker_.Submit(Request(Prompt(300, 9), 2200, PolicyKind::kFull, ""));
  WaitFor([&] { return low->tokens().size() >= 20; });
  GenerationRequest request = Request(Prompt(1000, 8), 20, PolicyKind::kFull, "");
  request.priority = 0;
  Run(request);
  EXPECT_TRUE(low->Wait().status.ok());
  EXPECT_EQ(low->Wait().num_suspensions, 1);
  ExpectSame(*low, *want);
  ExpectAllIsFree();
}

class NoHostMemoryTest : public PreemptionTest {
 protected:
  NoHostMemoryTest() : PreemptionTest(LittleMemory(2)) {}
};

TEST_F(NoHostMemoryTest, WithoutRoomInTheHostsMemoryOneWaits) {
  const auto low = worker_.Submit(Request(Prompt(300, 9), 2200, PolicyKind::kFull, ""));
  WaitFor([&] { return low->tokens().size() >= 20; });
  GenerationRequest request = Request(Prompt(1000, 8), 20, PolicyKind::kFull, "");
  request.priority = 0;
  Run(request);
  EXPECT_TRUE(low->finished());
  EXPECT_EQ(worker_.engine().stats().preemptions, 0u);
}

}  // namespace
}  // namespace retroinfer
