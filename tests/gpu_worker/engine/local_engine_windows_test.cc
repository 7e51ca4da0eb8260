// A model with window layers beside indexed ones through the whole engine: what it computes, and
// that neither prefixes of other requests, stretches, nor suspension change a bit of it.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "build_paths.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/masked_reference.h"
#include "tests/support/suspending.h"

namespace retroinfer {
namespace {

using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::MaskedReference;
using test_support::RandomPrompt;

constexpr int64_t kContextLength = 16384;
// Shorter than what is read behind the last segment of a prompt, and longer than a segment.
constexpr int32_t kShort = 100, kLong = 1500;

struct Case {
  const char* model;
  std::vector<int32_t> windows;  // by layer; 0: all tokens
  // The same layers with windows that no prompt of these tests fills; none: the family has none.
  std::vector<int32_t> wide = {};
};

std::filesystem::path Model(const Case& of) {
  return std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models" / of.model;
}

InProcessWorkerOptions Options(const Case& of, int64_t dense_below = 256) {
  InProcessWorkerOptions options;
  options.model_folder = Model(of);
  options.context_length = kContextLength;
  options.max_model_len = kContextLength;
  options.layer_windows = of.windows;
  options.precision = ComputePrecision::kF32;
  options.kv_format = kF32Kv;
  options.dense_kv_bytes = size_t{32} << 20;
  options.wave_index.dense_below = dense_below;
  return options;
}

// What a request gave: the same bits mean the same computation.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t cached_tokens = 0;

  void ExpectSame(const Outcome& other) const {
    EXPECT_EQ(tokens, other.tokens);
    EXPECT_EQ(logprobs, other.logprobs);
  }
};

Outcome OutcomeOf(InProcessWorker& worker, GenerationRequest request) {
  request.sampling.num_logprobs = 0;
  const auto sink = worker.Submit(std::move(request));
  const GenerationResult& result = sink->Wait();
  EXPECT_TRUE(result.status.ok()) << result.status;
  return {sink->tokens(), sink->logprobs(), result.cached_tokens};
}

std::vector<int32_t> Prompt(InProcessWorker& worker, int64_t tokens, uint64_t seed = 7) {
  return RandomPrompt(tokens, worker.config().vocab_size, seed);
}

// Of a model of two layers, the first or the second one has a window; and a Gemma, whose layers
// with windows have another RoPE,
// and a gpt-oss, whose heads have a logit without a value.
class LocalEngineWindowsTest : public testing::TestWithParam<Case> {};

// Around the window, blocks of 64 and the steps of 128 in which tokens are kept; and where the ring
// has gone round several times. Policy wave attends exactly as long as the context is dense.
TEST_P(LocalEngineWindowsTest, GreedyTokensAreThoseOfAPlainMask) {
  InProcessWorker worker(Options(GetParam(), 2048));
  if (worker.device().info().backend != "cpu") GTEST_SKIP() << "the reference needs f32";
  const std::vector<int32_t>& windows = GetParam().windows;
  MaskedReference reference(Model(GetParam()).string(), kContextLength,
                            [&windows](uint32_t layer, int64_t position, int64_t token) {
                              return windows[layer] == 0 || token > position - windows[layer];
                            });
  for (const int64_t length : {1, 100, 101, 229, 1700}) {
    for (const PolicyKind policy : {PolicyKind::kFull, PolicyKind::kWave}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, policy " << PolicyName(policy));
      const int32_t count = length == 229 ? 300 : 20;
      const GenerationRequest request = worker.Greedy(Prompt(worker, length), count, policy);
      EXPECT_EQ(worker.Generate(request),
                reference.Generate(request.prompt, static_cast<size_t>(count)));
    }
  }
  EXPECT_TRUE(worker.WaitUntilIdle());
}

// The window matters: all of it is not what the model computes.
TEST_P(LocalEngineWindowsTest, AWindowChangesWhatIsComputed) {
  InProcessWorkerOptions options = Options(GetParam());
  InProcessWorker windowed(options);
  options.layer_windows = GetParam().wide;
  InProcessWorker full(options);
  for (const int64_t length : {80, 2500}) {
    const GenerationRequest request = windowed.Greedy(Prompt(full, length), 10, PolicyKind::kFull);
    const Outcome one = OutcomeOf(windowed, request);
    const Outcome other = OutcomeOf(full, request);
    EXPECT_EQ(one.tokens.size(), 10u);
    if (length == 80) {
      for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(one.logprobs[i], other.logprobs[i], 1e-4);
    } else {
      EXPECT_NE(one.logprobs, other.logprobs);
    }
  }
}

// Segments of 8192 and 1024 tokens; the rest of the prompt attends to their tails.
TEST_P(LocalEngineWindowsTest, APrefixThatIsReadChangesNoBit) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    InProcessWorker cold(Options(GetParam())), warm(Options(GetParam()));
    const std::vector<int32_t> prompt = Prompt(cold, 11'000);
    const Outcome expected = OutcomeOf(cold, cold.Greedy(prompt, 60, policy));
    EXPECT_EQ(expected.cached_tokens, 0);
    // Another prompt with the same first 10'000 tokens leaves its segments, by policy wave.
    std::vector<int32_t> other = prompt;
    other.resize(10'000);
    OutcomeOf(warm, warm.Greedy(other, 2));
    ASSERT_TRUE(warm.WaitUntilIdle());
    const Outcome got = OutcomeOf(warm, warm.Greedy(prompt, 60, policy));
    EXPECT_EQ(got.cached_tokens, 8192 + 1024) << PolicyName(policy);
    got.ExpectSame(expected);
    if (policy != PolicyKind::kWave) continue;
    ASSERT_TRUE(warm.WaitUntilIdle());
    const Outcome again = OutcomeOf(warm, warm.Greedy(prompt, 60, policy));
    EXPECT_EQ(again.cached_tokens, 8192 + 2 * 1024);
    again.ExpectSame(expected);
  }
}

// Prompts of one group share rows and cached tokens, and go on differently.
TEST_P(LocalEngineWindowsTest, PromptsThatShareAPrefixChangeNoBit) {
  InProcessWorker cold(Options(GetParam())), warm(Options(GetParam()));
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(Prompt(cold, 3500));
    const auto own = Prompt(cold, 400, static_cast<uint64_t>(100 + i / 2));
    const auto at = static_cast<size_t>(i == 3 ? 2200 : 3300);
    prompts.back().resize(at);
    prompts.back().insert(prompts.back().end(), own.begin(), own.end());
    prompts.back().push_back(i);
  }
  OutcomeOf(warm, warm.Greedy(Prompt(cold, 3300), 2));
  ASSERT_TRUE(warm.WaitUntilIdle());
  std::vector<std::shared_ptr<test_support::CollectingSink>> sinks;
  for (const auto& prompt : prompts) {
    GenerationRequest request = warm.Greedy(prompt, 20);
    request.sampling.num_logprobs = 0;
    sinks.push_back(warm.Submit(request));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(sinks[i]->Wait().status.ok());
    EXPECT_GE(sinks[i]->Wait().cached_tokens, 2 * 1024);
    const Outcome expected = OutcomeOf(cold, cold.Greedy(prompts[i], 20));
    EXPECT_EQ(sinks[i]->tokens(), expected.tokens) << i;
    EXPECT_EQ(sinks[i]->logprobs(), expected.logprobs) << i;
  }
}

TEST_P(LocalEngineWindowsTest, StretchesChangeNoBit) {
  InProcessWorkerOptions options = Options(GetParam());
  options.stretches.least_tokens = 0;
  InProcessWorker whole(options);
  options.stretches = {.least_tokens = 1024, .share_of_prefix = 0};
  InProcessWorker in_parts(options);
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    const std::vector<int32_t> prompt = Prompt(whole, 10'500);
    const Outcome expected = OutcomeOf(whole, whole.Greedy(prompt, 40, policy));
    OutcomeOf(in_parts, in_parts.Greedy(prompt, 40, policy)).ExpectSame(expected);
    // Behind a prefix as well.
    ASSERT_TRUE(whole.WaitUntilIdle() && in_parts.WaitUntilIdle());
  }
}

// Segments of generated tokens have tails, too: those of the answer, and of a prompt that was
// dense. Decode steps round otherwise than prefill does.
TEST_P(LocalEngineWindowsTest, WhatAnAnswerLeavesCanBeReadOn) {
  InProcessWorker worker(Options(GetParam(), 2048)), cold(Options(GetParam(), 2048));
  const std::vector<int32_t> prompt = Prompt(worker, 1500);
  GenerationRequest request = worker.Greedy(prompt, 2500);
  request.reuse = KvReuse::kGenerated;
  const Outcome answer = OutcomeOf(worker, request);
  ASSERT_TRUE(worker.WaitUntilIdle());
  std::vector<int32_t> next = prompt;
  next.insert(next.end(), answer.tokens.begin(), answer.tokens.end());
  const auto more = Prompt(worker, 300, 9);
  next.insert(next.end(), more.begin(), more.end());
  const Outcome expected = OutcomeOf(cold, cold.Greedy(next, 5));
  request = worker.Greedy(next, 5);
  request.reuse = KvReuse::kGenerated;
  const Outcome got = OutcomeOf(worker, request);
  EXPECT_GE(got.cached_tokens, 2048);
  EXPECT_EQ(got.tokens, expected.tokens);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(got.logprobs[i], expected.logprobs[i], 2e-3);
}

TEST_P(LocalEngineWindowsTest, SuspensionChangesNoBit) {
  absl::Mutex mutex;
  std::vector<int64_t> suspended_at;
  InProcessWorkerOptions options = Options(GetParam(), 2048);
  options.preemption = true;
  options.on_plan = [&](const SchedulerInput& input, StepPlan& plan) {
    absl::MutexLock lock(&mutex);
    for (const RequestDescription& request : input.requests) {
      if (request.priority != 7 || request.phase != RequestPhase::kDecoding) continue;
      const int64_t wanted = 750 + 130 * static_cast<int64_t>(suspended_at.size());
      if (request.context < wanted || !test_support::MaySuspend(plan, request) ||
          request.suspended_blocks > input.free_suspended_blocks) {
        continue;
      }
      suspended_at.push_back(request.context);
      plan.suspend.push_back(request.id);
    }
  };
  InProcessWorker worker(options);
  for (const PolicyKind policy : {PolicyKind::kFull, PolicyKind::kWave}) {
    GenerationRequest request = worker.Greedy(Prompt(worker, 700), 2500, policy);
    const Outcome expected = OutcomeOf(worker, request);
    {
      absl::MutexLock lock(&mutex);
      EXPECT_TRUE(suspended_at.empty());
    }
    request.request_id += " again";
    request.cache_salt = "another";
    request.priority = 7;
    // Others take the rows that it leaves.
    std::vector<std::shared_ptr<test_support::CollectingSink>> others;
    for (int i = 0; i < 60; ++i) {
      others.push_back(worker.Submit(worker.Greedy(Prompt(worker, 100 + i, 50), 20 + i, policy)));
    }
    OutcomeOf(worker, request).ExpectSame(expected);
    for (const auto& other : others) EXPECT_TRUE(other->Wait().status.ok());
    ASSERT_TRUE(worker.WaitUntilIdle());
    absl::MutexLock lock(&mutex);
    EXPECT_GT(suspended_at.size(), 10u) << PolicyName(policy);
    suspended_at.clear();
  }
}

// Given up in any layer, a prompt leaves no segment that another one goes on behind wrongly.
TEST_P(LocalEngineWindowsTest, APromptThatIsAbortedLeavesNothingWrong) {
  InProcessWorker cold(Options(GetParam()));
  const std::vector<int32_t> prompt = Prompt(cold, 3500);
  const Outcome expected = OutcomeOf(cold, cold.Greedy(prompt, 5));
  for (const int rounds : {3, 13, 20}) {
    std::atomic<int> left = rounds;
    std::atomic<InProcessWorker*> watched = nullptr;
    InProcessWorkerOptions options = Options(GetParam());
    // A round enqueues at most one pass of the prompt.
    options.on_plan = [&](const SchedulerInput&, StepPlan& plan) {
      InProcessWorker* const worker = watched;
      if (worker == nullptr || plan.passes.empty() || --left != 0) return;
      worker->engine().Abort("aborted");
    };
    InProcessWorker worker(options);
    GenerationRequest request = worker.Greedy(prompt, 5);
    request.request_id = "aborted";
    watched = &worker;
    worker.Submit(request)->Wait();
    ASSERT_TRUE(worker.WaitUntilIdle());
    watched = nullptr;
    OutcomeOf(worker, worker.Greedy(prompt, 5)).ExpectSame(expected);
  }
}

// Rows of a part are not positions there.
TEST_P(LocalEngineWindowsTest, PolicyStreamingIsRefused) {
  InProcessWorker worker(Options(GetParam()));
  auto sink = std::make_shared<test_support::CollectingSink>();
  const absl::Status status =
      worker.engine().Submit(worker.Greedy(Prompt(worker, 10), 5, PolicyKind::kStreaming), sink);
  EXPECT_EQ(common::ReasonOf(status).reason, "CAPACITY_EXCEEDED") << status;
}

std::string WindowsName(const testing::TestParamInfo<Case>& info) {
  const bool is_gemma = std::string_view(info.param.model).starts_with("gemma");
  const bool is_gpt_oss = std::string_view(info.param.model).starts_with("gptoss");
  return absl::StrCat(is_gemma     ? "Gemma"
                      : is_gpt_oss ? "GptOss"
                                   : "",
                      "Windows", absl::StrJoin(info.param.windows, "And"));
}

constexpr char kLlama[] = "llama-d64-untied-bf16";
constexpr char kGptOss[] = "gptoss-d64-mxfp4";
constexpr char kGemma[] = "gemma3-d64-windows-bf16";

INSTANTIATE_TEST_SUITE_P(Layers, LocalEngineWindowsTest,
                         testing::Values(Case{kLlama, {kShort, 0}}, Case{kLlama, {0, kShort}},
                                         Case{kLlama, {kLong, 0}}, Case{kLlama, {0, kLong}},
                                         Case{kGemma, {kShort, kShort, 0}, {8192, 8192, 0}},
                                         Case{kGptOss, {kShort, 0, kShort}, {8192, 0, 8192}}),
                         WindowsName);

}  // namespace
}  // namespace retroinfer
