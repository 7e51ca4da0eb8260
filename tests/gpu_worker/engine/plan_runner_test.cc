// The engine does what the scheduler plans, and reading prompts together changes no token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

struct Trace {
  std::mutex mutex;
  std::vector<SchedulerInput> inputs;
  std::vector<StepPlan> plans;
};

InProcessWorkerOptions Traced(Trace& trace) {
  InProcessWorkerOptions options = SmallWorker();
  options.on_plan = [&trace](const SchedulerInput& input, const StepPlan& plan) {
    const std::lock_guard lock(trace.mutex);
    trace.inputs.push_back(input);
    trace.plans.push_back(plan);
  };
  return options;
}

class PlanRunnerTest : public testing::Test {
 protected:
  GenerationRequest Request(int64_t prompt_tokens, int32_t max_tokens, uint64_t seed,
                            PolicyKind policy) {
    GenerationRequest request = worker_.Greedy(
        RandomPrompt(prompt_tokens, worker_.config().vocab_size, seed), max_tokens, policy);
    request.sampling.num_logprobs = 0;
    return request;
  }

  Trace trace_;
  InProcessWorker worker_{Traced(trace_)};
};

// Bit for bit: prompts of all kinds, some with a beginning that is cached, alone and together.
TEST_F(PlanRunnerTest, PromptsThatAreReadTogetherGiveWhatTheyGiveAlone) {
  std::vector<GenerationRequest> requests;
  const int64_t lengths[] = {1, 3, 4, 5, 63, 64, 65, 200, 257, 700, 1500, 2047, 2200, 5000};
  for (const int64_t length : lengths) {
    requests.push_back(Request(length, 12, static_cast<uint64_t>(length),
                               length % 2 == 0 ? PolicyKind::kFull : PolicyKind::kWave));
  }
  // Questions about a text that the last one has left in the arena.
  for (uint64_t i = 0; i < 4; ++i) {
    GenerationRequest question = Request(10 + static_cast<int64_t>(i), 12, i,
                                         i % 2 == 0 ? PolicyKind::kFull : PolicyKind::kWave);
    const std::vector<int32_t>& text = requests[13].prompt;
    question.prompt.insert(question.prompt.begin(), text.begin(), text.end());
    requests.push_back(std::move(question));
  }
  std::vector<std::shared_ptr<CollectingSink>> alone;
  for (const GenerationRequest& request : requests) {
    alone.push_back(worker_.Submit(request));
    ASSERT_TRUE(alone.back()->Wait().status.ok());
  }
  size_t largest = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<CollectingSink>> together;
    for (const GenerationRequest& request : requests) together.push_back(worker_.Submit(request));
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(together[i]->Wait().status.ok());
      EXPECT_EQ(together[i]->tokens(), alone[i]->tokens()) << "request " << i;
      EXPECT_EQ(together[i]->logprobs(), alone[i]->logprobs()) << "request " << i;
    }
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
  const std::lock_guard lock(trace_.mutex);
  for (const StepPlan& plan : trace_.plans) {
    for (const StepPlan::Group& group : plan.begin) {
      largest = std::max(largest, group.members.size());
    }
  }
  EXPECT_GT(largest, 1u) << "nothing was read together";
}

// What the engine does next shows that it did what the plan said.
TEST_F(PlanRunnerTest, EachPlanIsCarriedOutInFull) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t i = 0; i < 12; ++i) {
    sinks.push_back(worker_.Submit(Request(100 + 400 * static_cast<int64_t>(i), 30, i,
                                           i % 3 == 0 ? PolicyKind::kFull : PolicyKind::kWave)));
  }
  for (const auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_TRUE(worker_.WaitUntilIdle());
  const std::lock_guard lock(trace_.mutex);
  size_t num_passes = 0;
  for (size_t i = 0; i + 1 < trace_.plans.size(); ++i) {
    const StepPlan& plan = trace_.plans[i];
    const SchedulerInput& next = trace_.inputs[i + 1];
    num_passes += plan.passes.size();
    for (const StepPlan::Pass& pass : plan.passes) {
      if (&pass != &plan.passes.back()) continue;
      const LaneDescription& lane = next.lanes[pass.lane];
      const bool goes_on = lane.layer == pass.layer
                               ? lane.next_row == pass.first_row + pass.num_rows
                               : lane.layer == pass.layer + 1 && lane.next_row == 0;
      EXPECT_TRUE(goes_on || lane.is_free) << "plan " << i;
    }
    for (const RequestDescription& request : next.requests) {
      const bool admitted =
          std::find(plan.admit.begin(), plan.admit.end(), request.id) != plan.admit.end();
      if (admitted) {
        EXPECT_NE(request.phase, RequestPhase::kWaiting) << "plan " << i;
      }
      const bool decoded =
          std::find(plan.decode.begin(), plan.decode.end(), request.id) != plan.decode.end();
      for (const RequestDescription& before : trace_.inputs[i].requests) {
        if (before.id != request.id || before.phase != RequestPhase::kDecoding) continue;
        EXPECT_EQ(request.context, before.context + (decoded ? 1 : 0)) << "plan " << i;
      }
    }
  }
  EXPECT_GT(num_passes, 12u);
}

// Nothing ends, and no prompt is done with, but by a plan.
TEST_F(PlanRunnerTest, RequestsDecodeAndAreAbortedAsPlanned) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t i = 0; i < 6; ++i) {
    GenerationRequest request = Request(500 + 1000 * static_cast<int64_t>(i), 40, i,
                                        i % 3 == 0 ? PolicyKind::kFull : PolicyKind::kWave);
    if (i == 4) request.deadline = absl::Now() + absl::Milliseconds(1);
    if (i == 5) request.sampling.max_tokens = 4000;
    request.request_id = std::to_string(i);
    sinks.push_back(worker_.Submit(std::move(request)));
  }
  EXPECT_TRUE(worker_.engine().Abort("5"));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(sinks[i]->Wait().reason, FinishReason::kLength);
  // What costs are known to be by then decides which.
  EXPECT_THAT(sinks[4]->Wait().reason,
              testing::AnyOf(FinishReason::kDeadline, FinishReason::kRefused));
  EXPECT_EQ(sinks[5]->Wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(worker_.WaitUntilIdle());
  const std::lock_guard lock(trace_.mutex);
  std::set<uint64_t> finished;
  size_t num_ended = 0;
  for (size_t i = 0; i < trace_.plans.size(); ++i) {
    for (const RequestDescription& request : trace_.inputs[i].requests) {
      if (request.phase != RequestPhase::kDecoding) continue;
      EXPECT_EQ(finished.count(request.id), 1u) << "plan " << i;
    }
    finished.insert(trace_.plans[i].finish.begin(), trace_.plans[i].finish.end());
    num_ended += trace_.plans[i].end.size();
  }
  EXPECT_EQ(finished.size(), 4u);
  EXPECT_EQ(num_ended, 2u);
}

// Carries out the plans that another engine has carried out, and makes none itself: what several
// workers that hold parts of one model would do.
class Follower {
 public:
  explicit Follower(const Trace& leader) : leader_(leader) {}

  void OnPlan(const SchedulerInput& input, StepPlan& plan) {
    plan = {};
    if (next_ < leader_.plans.size() && IsAsFar(input, leader_.inputs[next_])) {
      plan = leader_.plans[next_++];
    }
  }
  bool IsDone() const { return next_ == leader_.plans.size(); }

 private:
  // Whether the background and the store are as far as they were with the leader. Those who wait
  // may have come earlier.
  static bool IsAsFar(const SchedulerInput& input, const SchedulerInput& leader) {
    for (const uint64_t id : leader.unused) {
      if (std::find(input.unused.begin(), input.unused.end(), id) == input.unused.end()) {
        return false;
      }
    }
    for (const RequestDescription& theirs : leader.requests) {
      const auto ours = std::find_if(input.requests.begin(), input.requests.end(),
                                     [&](const auto& request) { return request.id == theirs.id; });
      if (ours == input.requests.end()) return false;
      if (ours->phase != theirs.phase || ours->answer != theirs.answer ||
          ours->is_settled < theirs.is_settled || ours->is_copied < theirs.is_copied ||
          ours->can_decode < theirs.can_decode) {
        return false;
      }
      EXPECT_EQ(ours->context, theirs.context);
      EXPECT_EQ(ours->cached_tokens, theirs.cached_tokens);
    }
    for (size_t i = 0; i < leader.lanes.size(); ++i) {
      EXPECT_EQ(input.lanes[i].layer, leader.lanes[i].layer);
      EXPECT_EQ(input.lanes[i].next_row, leader.lanes[i].next_row);
      if (input.lanes[i].layers_open < leader.lanes[i].layers_open) return false;
    }
    return input.free_passes >= leader.free_passes &&
           input.free_dense_blocks >= leader.free_dense_blocks &&
           input.free_meta_blocks >= leader.free_meta_blocks;
  }

  const Trace& leader_;
  std::atomic<size_t> next_ = 0;
};

TEST_F(PlanRunnerTest, AnotherEngineThatCarriesOutTheSamePlansGivesTheSameTokens) {
  const auto submit_all = [this](InProcessWorker& worker) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (uint64_t i = 0; i < 7; ++i) {
      GenerationRequest request = Request(300 + 800 * static_cast<int64_t>(i), 150, i,
                                          i % 3 == 0 ? PolicyKind::kFull : PolicyKind::kWave);
      request.request_id = std::to_string(i);
      if (i == 6) request.sampling.max_tokens = 5000;
      sinks.push_back(worker.Submit(std::move(request)));
    }
    return sinks;
  };
  const auto led = submit_all(worker_);
  while (led[5]->tokens().size() < 2) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(worker_.engine().Abort("6"));
  for (const auto& sink : led) sink->Wait();
  EXPECT_TRUE(worker_.WaitUntilIdle());
  worker_.EndEngine();  // no more plans
  Trace led_by;         // what concerns requests
  for (size_t i = 0; i < trace_.plans.size(); ++i) {
    if (trace_.plans[i].empty()) continue;
    led_by.inputs.push_back(trace_.inputs[i]);
    led_by.plans.push_back(trace_.plans[i]);
  }
  Follower follower(led_by);
  Trace none;
  InProcessWorkerOptions options = Traced(none);
  options.on_plan = [&](const SchedulerInput& input, StepPlan& plan) {
    follower.OnPlan(input, plan);
  };
  InProcessWorker worker(options);
  const auto followed = submit_all(worker);
  for (size_t i = 0; i < led.size(); ++i) {
    EXPECT_EQ(followed[i]->Wait().reason,
              i == 6 ? FinishReason::kCancelled : FinishReason::kLength);
    EXPECT_EQ(followed[i]->tokens(), led[i]->tokens()) << "request " << i;
    EXPECT_EQ(followed[i]->logprobs(), led[i]->logprobs()) << "request " << i;
  }
  EXPECT_TRUE(worker.WaitUntilIdle());
  EXPECT_TRUE(follower.IsDone());
}

}  // namespace
}  // namespace retroinfer
