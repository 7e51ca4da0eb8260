// Everything that a plan follows from is in what the scheduler is told: another scheduler that is
// told the same makes the same plans.
#include <gtest/gtest.h>

#include <mutex>
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

class ObservationTest : public testing::Test {
 protected:
  ObservationTest() {
    InProcessWorkerOptions options = SmallWorker();
    options.max_batch = 3;
    options.arena_bytes = size_t{24} << 20;
    options.preemption = true;
    options.evict_one_in = 5;
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      const std::lock_guard lock(mutex_);
      inputs_.push_back(input);
      plans_.push_back(plan);
      SuspendOne(input, plan);
    };
    worker_ = std::make_unique<InProcessWorker>(options);
  }

  // Besides what was planned.
  void SuspendOne(const SchedulerInput& input, StepPlan& plan) {
    for (const RequestDescription& request : input.requests) {
      if (num_aside_ == 3 || !request.can_suspend || request.num_suspensions > 0) continue;
      if (request.suspended_blocks > input.free_suspended_blocks) continue;
      ++num_aside_;
      plan.suspend.push_back(request.id);
      return;
    }
  }
  std::shared_ptr<CollectingSink> Submit(int64_t prompt_tokens, int32_t max_tokens, uint64_t seed,
                                         PolicyKind policy, int32_t priority) {
    GenerationRequest request = worker_->Greedy(
        RandomPrompt(prompt_tokens, worker_->config().vocab_size, seed), max_tokens, policy);
    request.priority = priority;
    return worker_->Submit(std::move(request));
  }
  // Prompts of all kinds; some find no room in the arena, some are suspended, one is aborted.
  void Serve() {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (uint64_t i = 0; i < 8; ++i) {
      sinks.push_back(Submit(500 + 900 * static_cast<int64_t>(i), 120, i,
                             i % 3 == 0 ? PolicyKind::kFull : PolicyKind::kWave, 1));
    }
    GenerationRequest aborted =
        worker_->Greedy(RandomPrompt(3000, worker_->config().vocab_size, 77), 4000);
    const std::string id = aborted.request_id;
    const auto gone = worker_->Submit(std::move(aborted));
    while (sinks[2]->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
    for (uint64_t i = 0; i < 3; ++i) {
      sinks.push_back(Submit(300, 20, 100 + i, PolicyKind::kWave, 0));
    }
    worker_->engine().Abort(id);
    for (const auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    EXPECT_EQ(gone->Wait().reason, FinishReason::kCancelled);
    EXPECT_TRUE(worker_->WaitUntilIdle());
    options_ = worker_->engine().scheduler_options();
    worker_->EndEngine();
  }

  std::unique_ptr<InProcessWorker> worker_;
  std::mutex mutex_;
  std::vector<SchedulerInput> inputs_;
  std::vector<StepPlan> plans_;
  SchedulerOptions options_;
  size_t num_aside_ = 0;
};

TEST_F(ObservationTest, AnotherSchedulerThatIsToldTheSameMakesTheSamePlans) {
  Serve();
  Scheduler replica(options_);
  size_t granted = 0, ended = 0, let_go = 0, finished = 0, left = 0, rejoined = 0;
  size_t measured = 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const StepPlan plan = replica.Plan(inputs_[i]);
    ASSERT_EQ(plan, plans_[i]) << "round " << i << " of " << inputs_.size();
    granted += plan.grant.size();
    ended += plan.end.size();
    let_go += plan.let_go.size();
    finished += plan.finish.size();
    left += plan.leave.size();
    rejoined += plan.rejoin.size();
    measured += inputs_[i].measured.size();
  }
  EXPECT_EQ(ended, 1u) << "the one that was aborted";
  EXPECT_GE(finished, 11u);
  EXPECT_EQ(let_go, 12u);
  EXPECT_GT(granted, 5u);
  EXPECT_GE(left, 2u) << "three were set aside; the one that is aborted may end before it has left";
  EXPECT_GE(rejoined + 1, left) << "all but the one that was aborted, if it was one of them";
  EXPECT_GT(measured, 10u);
}

}  // namespace
}  // namespace retroinfer
