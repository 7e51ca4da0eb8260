// A request whose steps try what a draft model says gives the tokens and the log-probabilities, bit
// by bit, of one that gets a token a step: whatever the model is like, and whatever it has read.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "build_paths.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/draft_comparison.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/suspending.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::ExpectSameAnswers;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;

constexpr int32_t kMaxBatch = 12;
constexpr auto kOfModel = static_cast<size_t>(DraftSource::kModel);

std::filesystem::path Model(const char* name) {
  return std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models" / name;
}

// Asks the draft model for as many tokens as there are rows for, up to a number that changes from
// step to step, and lets it read in small pieces, whatever that is expected to gain.
class Asking {
 public:
  void OnPlan(const SchedulerInput& input, StepPlan& plan) {
    if (!asks) return;
    std::sort(plan.decode.begin(), plan.decode.end());
    plan.decode.erase(std::unique(plan.decode.begin(), plan.decode.end()), plan.decode.end());
    plan.drafts.clear();
    plan.draft_reads.clear();
    uint64_t reading = input.draft_reading;
    for (const RequestDescription& request : input.requests) {
      const RequestDescription::ByModel& by_model = request.by_model;
      if (std::ranges::find(plan.decode, request.id) == plan.decode.end()) continue;
      if (by_model.rows == 0) continue;
      if (by_model.unread > 0) {
        if (reading != 0 && reading != request.id) continue;
        reading = request.id;
        plan.draft_reads.assign(1, {.id = request.id, .rows = 100});
        continue;
      }
      const auto free = int64_t{kMaxBatch} - std::ssize(plan.decode);
      const int64_t count = std::min({by_model.rows, free, ++num_plans_ % 9});
      if (count <= 0) continue;
      plan.drafts.push_back({.id = request.id, .count = count});
      plan.decode.insert(plan.decode.end(), static_cast<size_t>(count), request.id);
    }
  }
  void SuspendSome(const SchedulerInput& input, StepPlan& plan) {
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      if (!test_support::MaySuspend(plan, request) || request.suspended_blocks > free) continue;
      if (++num_chances_ % 23 != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
  }

  std::atomic<bool> asks = true;
  std::atomic<bool> suspends = false;

 private:
  int64_t num_plans_ = 0;  // the engine's thread
  int64_t num_chances_ = 0;
};

class DraftModelEngineTest : public testing::Test {
 protected:
  explicit DraftModelEngineTest(const char* draft_model = "llama-d64-untied-bf16")
      : worker_(Options(draft_model)) {}

  InProcessWorkerOptions Options(const char* draft_model) {
    InProcessWorkerOptions options;
    options.model_folder = Model("llama-d64-untied-bf16");
    options.context_length = 131072;
    options.max_model_len = 8192;
    options.wave_index.dense_below = 1024;
    options.draft_folder = Model(draft_model);
    options.max_batch = kMaxBatch;
    options.drafts = true;
    options.preemption = true;
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      if (asking_.suspends) asking_.SuspendSome(input, plan);
      asking_.OnPlan(input, plan);
    };
    return options;
  }
  GenerationRequest Request(int64_t prompt_tokens, int32_t max_tokens, PolicyKind policy,
                            uint64_t seed = 1) {
    GenerationRequest request = worker_.Greedy(
        RandomPrompt(prompt_tokens, worker_.config().vocab_size, seed), max_tokens, policy);
    request.attention.streaming_window = 128;
    request.sampling.num_logprobs = 2;
    return request;
  }
  std::shared_ptr<CollectingSink> Submit(GenerationRequest request, bool drafts) {
    request.drafts = drafts;
    request.cache_salt += drafts ? "tried" : "plain";
    request.request_id = absl::StrCat("request-", ++num_submitted_);
    return worker_.Submit(std::move(request));
  }
  // Returns the result with drafts, behind whose tokens those without drafts were compared.
  GenerationResult ExpectSame(const GenerationRequest& request) {
    const auto plain = Submit(request, false), tried = Submit(request, true);
    ExpectSameAnswers(*plain, *tried);
    return tried->Wait();
  }
  void ExpectIdle() {
    EXPECT_TRUE(worker_.WaitUntilIdle());
    EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
  }

  Asking asking_;
  int num_submitted_ = 0;
  InProcessWorker worker_;
};

// The draft model is the model itself, and sees all of a short text.
TEST_F(DraftModelEngineTest, TheModelItselfIsRight) {
  const GenerationResult result = ExpectSame(Request(90, 100, PolicyKind::kFull));
  EXPECT_GT(result.drafts_accepted, 60);
  EXPECT_LE(result.drafts_rejected, 5);
  const EngineStats stats = worker_.engine().stats();
  EXPECT_EQ(stats.accepted_by_source[kOfModel], static_cast<uint64_t>(result.drafts_accepted));
  EXPECT_EQ(stats.rejected_by_source[kOfModel], static_cast<uint64_t>(result.drafts_rejected));
  EXPECT_EQ(stats.drafts_accepted, stats.accepted_by_source[kOfModel]);
  // A step of the model for each draft.
  EXPECT_GE(stats.draft_model_steps, static_cast<uint64_t>(result.drafts_accepted));
  ExpectIdle();
}

// The window of 256 tokens moves again and again, with wave past segments that go live.
TEST_F(DraftModelEngineTest, LongTextsAreSeenThroughAWindow) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    const GenerationResult result = ExpectSame(Request(1500, 1300, policy));
    EXPECT_GT(result.drafts_accepted + result.drafts_rejected, 300);
  }
  ExpectIdle();
}

TEST_F(DraftModelEngineTest, SampledTokensAreThoseOfATokenAStep) {
  for (const uint64_t seed : {1, 2, 3}) {
    GenerationRequest request = Request(80, 100, PolicyKind::kFull, seed);
    request.sampling.temperature = 0.5f;
    request.sampling.seed = seed;
    if (seed == 2) request.sampling.frequency_penalty = 0.3f;
    const GenerationResult result = ExpectSame(request);
    EXPECT_GT(result.drafts_accepted + result.drafts_rejected, 20);
  }
}

// More of them than texts that the draft model holds, beside some that want no drafts.
TEST_F(DraftModelEngineTest, RequestsOfABatchShareTheModel) {
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    requests.push_back(Request(40 + 30 * static_cast<int64_t>(seed), 120, PolicyKind::kFull, seed));
  }
  std::vector<std::shared_ptr<CollectingSink>> plain, tried;
  for (const GenerationRequest& request : requests) plain.push_back(Submit(request, false));
  for (const auto& sink : plain) sink->Wait();
  for (const GenerationRequest& request : requests) tried.push_back(Submit(request, true));
  const auto beside = Submit(requests[0], false);
  for (size_t i = 0; i < requests.size(); ++i) ExpectSameAnswers(*plain[i], *tried[i]);
  EXPECT_EQ(beside->Wait().drafts_accepted + beside->Wait().drafts_rejected, 0);
  EXPECT_GT(worker_.engine().stats().accepted_by_source[kOfModel], 100u);
  ExpectIdle();
}

TEST_F(DraftModelEngineTest, SuspensionsChangeNothing) {
  const GenerationRequest request = Request(1200, 500, PolicyKind::kWave, 3);
  const auto plain = Submit(request, false);
  plain->Wait();
  asking_.suspends = true;
  const auto tried = Submit(request, true);
  ExpectSameAnswers(*plain, *tried);
  EXPECT_GT(tried->Wait().num_suspensions, 1);
  EXPECT_GT(tried->Wait().drafts_accepted + tried->Wait().drafts_rejected, 50);
  ExpectIdle();
}

// What is planned by costs is for the planner's own test; here that it does no harm. A model that
// was never asked is asked.
TEST_F(DraftModelEngineTest, PlansOfTheSchedulerAreCarriedOut) {
  asking_.asks = false;
  for (const uint64_t seed : {1, 2}) ExpectSame(Request(700, 400, PolicyKind::kWave, seed));
  EXPECT_GT(worker_.engine().stats().draft_model_steps, 0u);
  ExpectIdle();
}

TEST_F(DraftModelEngineTest, WhatIsMeasuredIsNotDrafted) {
  GenerationRequest request = Request(200, 30, PolicyKind::kFull);
  request.continuations = {std::vector<int32_t>(30, 7)};
  const auto sink = Submit(request, true);
  ASSERT_TRUE(sink->Wait().status.ok());
  EXPECT_EQ(sink->Wait().drafts_accepted + sink->Wait().drafts_rejected, 0);
  EXPECT_EQ(worker_.engine().stats().draft_model_steps, 0u);
}

class OtherDraftModelTest : public DraftModelEngineTest {
 protected:
  OtherDraftModelTest() : DraftModelEngineTest("qwen3-d128-tied-bf16") {}
};

TEST_F(OtherDraftModelTest, AnotherModelIsRightLessOften) {
  const GenerationResult result = ExpectSame(Request(90, 100, PolicyKind::kFull));
  EXPECT_GT(result.drafts_rejected, 20);
  EXPECT_LT(result.drafts_accepted, 60);
  ExpectSame(Request(1300, 300, PolicyKind::kWave));
  ExpectIdle();
}

// Two thirds of the served model's tokens have no embedding in it.
class SmallerVocabularyTest : public DraftModelEngineTest {
 protected:
  SmallerVocabularyTest() : DraftModelEngineTest("seedoss-d64-group10-bf16") {}
};

TEST_F(SmallerVocabularyTest, TokensThatItLacksDoNoHarm) {
  EXPECT_GT(ExpectSame(Request(90, 100, PolicyKind::kFull)).drafts_rejected, 20);
  ExpectIdle();
}

}  // namespace
}  // namespace retroinfer
