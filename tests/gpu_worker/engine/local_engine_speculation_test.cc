// A request whose steps try drafts gives the tokens and the log-probabilities, bit by bit, of one
// that gets a token a step, and leaves the same KV behind.
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
#include "tests/support/small_worker.h"
#include "tests/support/suspending.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::ExpectSameAnswers;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

using Tokens = std::vector<int32_t>;

constexpr int32_t kMaxBatch = 12;

std::filesystem::path Model(const char* path) {
  return std::filesystem::path(RETROINFER_SOURCE_DIR) / path;
}

// Tries as many drafts as there are, up to a number that changes from step to step, whatever they
// are expected to gain.
class Trying {
 public:
  void OnPlan(const SchedulerInput& input, StepPlan& plan) {
    if (!tries) return;
    std::sort(plan.decode.begin(), plan.decode.end());
    plan.decode.erase(std::unique(plan.decode.begin(), plan.decode.end()), plan.decode.end());
    for (const RequestDescription& request : input.requests) {
      if (std::ranges::find(plan.decode, request.id) == plan.decode.end()) continue;
      const auto free = int64_t{kMaxBatch} - std::ssize(plan.decode);
      const int64_t more = std::min({request.more_rows, free, ++num_plans_ % 9});
      plan.decode.insert(plan.decode.end(), static_cast<size_t>(std::max<int64_t>(0, more)),
                         request.id);
    }
  }
  void SuspendSome(const SchedulerInput& input, StepPlan& plan) {
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      if (!test_support::MaySuspend(plan, request) || request.suspended_blocks > free) continue;
      if (++num_chances_ % 7 != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
  }

  std::atomic<bool> tries = true;
  std::atomic<bool> suspends = false;

 private:
  int64_t num_plans_ = 0;  // the engine's thread
  int64_t num_chances_ = 0;
};

class SpeculationTest : public testing::Test {
 protected:
  explicit SpeculationTest(InProcessWorkerOptions options = SmallModel())
      : worker_(TryingOf(std::move(options))) {}

  static InProcessWorkerOptions SmallModel() { return SmallWorker(); }
  InProcessWorkerOptions TryingOf(InProcessWorkerOptions options) {
    options.max_batch = kMaxBatch;
    options.drafts = true;
    options.preemption = true;
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      if (trying_.suspends) trying_.SuspendSome(input, plan);
      trying_.OnPlan(input, plan);
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
  // Draws of few tokens, whose order the model decides: drafts are right now and then.
  GenerationRequest Sampled(int64_t prompt_tokens, int32_t max_tokens, PolicyKind policy,
                            uint64_t seed) {
    GenerationRequest request = Request(prompt_tokens, max_tokens, policy, seed);
    request.sampling.temperature = 0.8f;
    request.sampling.seed = seed;
    for (int32_t token = 40; token < 46; ++token) request.sampling.logit_bias[token] = 20;
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

  Trying trying_;
  int num_submitted_ = 0;
  InProcessWorker worker_;
};

// With wave the tokens go past two segments that go live, with streaming past many blocks.
TEST_F(SpeculationTest, GreedyTokensAreThoseOfATokenAStep) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    const GenerationResult result = ExpectSame(Request(3000, 2300, policy));
    EXPECT_GT(result.drafts_accepted, 200);
    EXPECT_GT(result.drafts_rejected, 20);
  }
  ExpectIdle();
}

TEST_F(SpeculationTest, SampledTokensAreThoseOfATokenAStep) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    int64_t accepted = 0, rejected = 0;
    for (const uint64_t seed : {1, 2, 3}) {
      GenerationRequest request = Sampled(2900 + static_cast<int64_t>(seed), 500, policy, seed);
      if (seed == 2) {
        request.sampling.frequency_penalty = 0.2f;
        request.sampling.presence_penalty = 0.1f;
        request.sampling.repetition_penalty = 1.02f;
      }
      if (seed == 3) request.sampling.top_k = 3;
      const GenerationResult result = ExpectSame(request);
      accepted += result.drafts_accepted;
      rejected += result.drafts_rejected;
    }
    EXPECT_GT(accepted, 50);
    EXPECT_GT(rejected, 50);
  }
}

TEST_F(SpeculationTest, RequestsOfABatchTryTheirOwnDrafts) {
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    requests.push_back(Request(2100, 400, PolicyKind::kWave, seed));
    requests.push_back(Sampled(90, 300, PolicyKind::kFull, seed));
    requests.push_back(Sampled(300, 300, PolicyKind::kStreaming, seed));
  }
  std::vector<std::shared_ptr<CollectingSink>> plain, tried;
  for (const GenerationRequest& request : requests) plain.push_back(Submit(request, false));
  for (const auto& sink : plain) sink->Wait();
  for (const GenerationRequest& request : requests) tried.push_back(Submit(request, true));
  for (size_t i = 0; i < requests.size(); ++i) ExpectSameAnswers(*plain[i], *tried[i]);
  ExpectIdle();
}

TEST_F(SpeculationTest, AnswersEndWhereTheyEndWithoutDrafts) {
  const GenerationRequest greedy = Request(600, 200, PolicyKind::kWave, 5);
  const auto whole = Submit(greedy, false);
  whole->Wait();
  const Tokens tokens = whole->tokens();
  for (size_t at = 100; at < 116; ++at) {
    SCOPED_TRACE(at);
    GenerationRequest stops = greedy;
    stops.sampling.stop_token_ids = {tokens[at]};
    ExpectSame(stops);
    stops.sampling.min_tokens = static_cast<int32_t>(at);
    ExpectSame(stops);
    stops.sampling.min_tokens = 0;
    stops.sampling.stop_token_ids.clear();
    stops.sampling.stop = {worker_.tokenizer().Decode(Tokens{tokens[at], tokens[at + 1]}, true)};
    if (stops.sampling.stop[0].empty()) continue;
    ExpectSame(stops);
  }
  for (int32_t most = 60; most < 70; ++most) {
    GenerationRequest shorter = greedy;
    shorter.sampling.max_tokens = most;
    EXPECT_EQ(ExpectSame(shorter).completion_tokens, most);
  }
  ExpectIdle();
}

// What a turn leaves ends where its answer does, although a step may have gone beyond: a stop
// string in a text that repeats itself is followed by drafts that were right.
TEST_F(SpeculationTest, TheNextTurnFindsTheSameKv) {
  GenerationRequest first = Request(500, 300, PolicyKind::kFull, 7);
  first.reuse = KvReuse::kGenerated;
  const auto whole = Submit(first, false);
  whole->Wait();
  const Tokens tokens = whole->tokens();
  first.sampling.stop = {worker_.tokenizer().Decode(Tokens{tokens[250], tokens[251]}, true)};
  ASSERT_FALSE(first.sampling.stop[0].empty());
  for (int32_t least = 200; least < 208; ++least) {
    first.sampling.min_tokens = least;
    std::vector<std::shared_ptr<CollectingSink>> next;
    for (const bool drafts : {false, true}) {
      GenerationRequest again = first;
      again.cache_salt = absl::StrCat(least, drafts);
      const auto sink = Submit(again, drafts);
      ASSERT_TRUE(sink->Wait().status.ok());
      ASSERT_EQ(sink->Wait().reason, FinishReason::kStop);
      ASSERT_TRUE(worker_.WaitUntilIdle());
      const Tokens answer = sink->tokens();
      again.prompt.insert(again.prompt.end(), answer.begin(), answer.end());
      for (int32_t token = 1; token < 9; ++token) again.prompt.push_back(token);
      again.sampling.stop.clear();
      again.sampling.max_tokens = 20;
      again.sampling.min_tokens = 0;
      next.push_back(Submit(again, drafts));
    }
    ExpectSameAnswers(*next[0], *next[1]);
    EXPECT_GT(next[0]->Wait().cached_generated_tokens, 190);
    EXPECT_EQ(next[1]->Wait().cached_generated_tokens, next[0]->Wait().cached_generated_tokens);
  }
}

TEST_F(SpeculationTest, SuspensionsChangeNothing) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull, PolicyKind::kStreaming}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    const GenerationRequest request = Request(2500, 700, policy, 3);
    const auto plain = Submit(request, false);
    plain->Wait();
    trying_.suspends = true;
    const auto tried = Submit(request, true);
    ExpectSameAnswers(*plain, *tried);
    trying_.suspends = false;
    EXPECT_GT(tried->Wait().num_suspensions, 2);
    EXPECT_GT(tried->Wait().drafts_accepted, 50);
  }
  ExpectIdle();
}

// Whatever the prediction says: the answer, something else, or nothing that the model could say.
TEST_F(SpeculationTest, APredictionChangesNoToken) {
  GenerationRequest request = Sampled(300, 120, PolicyKind::kFull, 4);
  const auto plain = Submit(request, false);
  EXPECT_TRUE(plain->Wait().status.ok());
  const Tokens answer = plain->tokens();
  request.prediction = answer;
  const GenerationResult right = ExpectSame(request);
  EXPECT_EQ(right.drafts_rejected, 0);
  // Every ninth step tries none; a step tries at most eight.
  EXPECT_GT(right.drafts_accepted, 70);
  request.prediction.assign(answer.begin() + 40, answer.end());
  ExpectSame(request);
  request.prediction.assign(500, 7);
  EXPECT_GT(ExpectSame(request).drafts_rejected, 0);
}

TEST_F(SpeculationTest, StepsThatScoreAreNotDrafts) {
  GenerationRequest request = Request(200, 30, PolicyKind::kFull);
  request.continuations = {Tokens(30, 7)};
  const auto sink = Submit(request, true);
  ASSERT_TRUE(sink->Wait().status.ok());
  EXPECT_EQ(sink->Wait().drafts_accepted + sink->Wait().drafts_rejected, 0);
}

// A request with a limit on the unseen mass may change how it attends at each step.
TEST_F(SpeculationTest, ALimitOnTheUnseenMassIsKept) {
  GenerationRequest request = Request(3000, 120, PolicyKind::kWave);
  request.attention.max_unseen_mass = 0.2;
  EXPECT_EQ(ExpectSame(request).drafts_accepted, 0);
}

InProcessWorkerOptions Windows() {
  InProcessWorkerOptions options;
  options.model_folder = Model("tests/golden/models/llama-d64-untied-bf16");
  options.context_length = 16384;
  options.max_model_len = 16384;
  options.layer_windows = {100, 0};
  options.dense_kv_bytes = size_t{32} << 20;
  options.wave_index.dense_below = 256;
  return options;
}

class WindowsSpeculationTest : public SpeculationTest {
 protected:
  WindowsSpeculationTest() : SpeculationTest(Windows()) {}
};

TEST_F(WindowsSpeculationTest, RingsForgetNothingThatIsStillSeen) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    const GenerationResult result = ExpectSame(Request(700, 2300, policy));
    EXPECT_GT(result.drafts_accepted, 200);
    EXPECT_GT(result.drafts_rejected, 20);
  }
  ExpectIdle();
}

// Its tokenizer has the ids that the model has.
InProcessWorkerOptions Needle() {
  InProcessWorkerOptions options;
  options.model_folder = Model("models/needle");
  return options;
}

class ConstrainedSpeculationTest : public SpeculationTest {
 protected:
  ConstrainedSpeculationTest() : SpeculationTest(Needle()) {}
};

TEST_F(ConstrainedSpeculationTest, MasksFollowTheDrafts) {
  constraint::ConstraintCompiler compiler(
      constraint::TokenVocabulary::Create(worker_.tokenizer(), worker_.generation().eos_token_ids,
                                          static_cast<int32_t>(worker_.config().vocab_size)));
  auto compiled = compiler.Compile({.form = constraint::ConstraintSpec::Form::kRegex,
                                    .text = R"((\[(alpha|beta), (alpha|beta)\]\n){3,40}end)"});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  int64_t accepted = 0, rejected = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    GenerationRequest request = Request(40, 400, PolicyKind::kWave, seed);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.sampling.ignore_eos = false;
    request.sampling.constraint = *compiled;
    const GenerationResult result = ExpectSame(request);
    accepted += result.drafts_accepted;
    rejected += result.drafts_rejected;
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(rejected, 5);
}

}  // namespace
}  // namespace retroinfer
