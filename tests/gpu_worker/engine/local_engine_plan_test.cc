// The engine does what the scheduler plans, and reading prompts together changes no token.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "build_paths.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;

struct Trace {
  std::mutex mutex;
  std::vector<SchedulerInput> inputs;
  std::vector<StepPlan> plans;
};

InProcessWorkerOptions Traced(Trace& trace) {
  InProcessWorkerOptions options;
  options.model_folder =
      std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models/llama-d64-untied-bf16";
  options.context_length = 131072;
  options.max_model_len = 12288;
  options.wave_index.dense_below = 2048;
  options.on_plan = [&trace](const SchedulerInput& input, const StepPlan& plan) {
    const std::lock_guard lock(trace.mutex);
    trace.inputs.push_back(input);
    trace.plans.push_back(plan);
  };
  return options;
}

class LocalEnginePlanTest : public testing::Test {
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
TEST_F(LocalEnginePlanTest, PromptsThatAreReadTogetherGiveWhatTheyGiveAlone) {
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
TEST_F(LocalEnginePlanTest, EachPlanIsCarriedOutInFull) {
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
TEST_F(LocalEnginePlanTest, RequestsDecodeAndAreAbortedAsPlanned) {
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
  EXPECT_EQ(sinks[4]->Wait().reason, FinishReason::kDeadline);
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

}  // namespace
}  // namespace retroinfer
