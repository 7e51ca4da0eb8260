// Policy streaming through the whole engine: what it computes, that prompts which are read in parts
// give the same, and that a context takes as much memory as its window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "build_paths.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/masked_reference.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::MaskedReference;
using test_support::RandomPrompt;
using testing::HasSubstr;

constexpr int64_t kContextLength = 131072;
constexpr int32_t kWindow = 128;

std::filesystem::path Model() {
  return std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models/llama-d64-untied-bf16";
}

InProcessWorkerOptions Options(int64_t max_whole_prompt, int64_t context_length = kContextLength) {
  InProcessWorkerOptions options;
  options.model_folder = Model();
  options.context_length = context_length;
  options.max_model_len = context_length;
  options.max_whole_prompt = max_whole_prompt;
  options.precision = ComputePrecision::kF32;
  options.kv_format = kF32Kv;
  options.dense_kv_bytes = size_t{32} << 20;
  options.wave_index.dense_below = 256;
  return options;
}

GenerationRequest Streaming(InProcessWorker& worker, int64_t prompt_tokens, int32_t max_tokens,
                            int32_t window = kWindow) {
  GenerationRequest request =
      worker.Greedy(RandomPrompt(prompt_tokens, worker.config().vocab_size, 7), max_tokens,
                    PolicyKind::kStreaming);
  request.attention.streaming_window = window;
  return request;
}

bool Sees(uint32_t /*layer*/, int64_t position, int64_t token) {
  if (token < 4 || position < 4 + 64) return true;
  return (token - 4) / 64 >= (position - 4) / 64 - kWindow / 64;
}

TEST(LocalEngineStreamingTest, GreedyTokensAreThoseOfAPlainMask) {
  InProcessWorker worker(Options(0));
  if (worker.device().info().backend != "cpu") GTEST_SKIP() << "the reference needs f32";
  InProcessWorker in_parts(Options(kWindow + 64 + 64 + 4));
  MaskedReference reference(Model().string(), kContextLength, Sees);
  // Around the sink, a block, the window, and where many blocks have left it.
  for (const int64_t length : {1, 4, 5, 68, 69, 195, 196, 197, 260, 261, 700}) {
    SCOPED_TRACE(length);
    const GenerationRequest request = Streaming(worker, length, length == 260 ? 150 : 12);
    const std::vector<int32_t> expected =
        reference.Generate(request.prompt, static_cast<size_t>(request.sampling.max_tokens));
    EXPECT_EQ(worker.Generate(request), expected);
    EXPECT_EQ(in_parts.Generate(request), expected);
  }
  EXPECT_TRUE(worker.WaitUntilIdle());
  EXPECT_TRUE(in_parts.WaitUntilIdle());
}

// The bits, not only the tokens: however a prompt is cut, and whatever is read beside it.
TEST(LocalEngineStreamingTest, PartsAndNeighboursChangeNothing) {
  InProcessWorker whole(Options(0));
  InProcessWorker in_parts(Options(600));
  GenerationRequest request = Streaming(whole, 3000, 30);
  request.sampling.num_logprobs = 0;
  const auto expected = whole.Submit(request);
  std::vector<std::shared_ptr<test_support::CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(
        in_parts.Submit(in_parts.Greedy(RandomPrompt(300 + i, in_parts.config().vocab_size, 1), 40,
                                        i == 0 ? PolicyKind::kFull : PolicyKind::kWave)));
  }
  request.request_id = "in parts";
  request.return_progress = true;
  const auto sink = in_parts.Submit(request);
  ASSERT_TRUE(expected->Wait().status.ok());
  ASSERT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
  EXPECT_EQ(sink->tokens(), expected->tokens());
  EXPECT_EQ(sink->logprobs(), expected->logprobs());
  EXPECT_EQ(sink->Wait().prompt_tokens, 3000);
  EXPECT_GT(sink->Wait().time_to_first_token, absl::ZeroDuration());
  ASSERT_GT(sink->progress().size(), 4u);
  EXPECT_EQ(sink->progress().back().processed_tokens, 3000);
  for (size_t i = 1; i < sink->progress().size(); ++i) {
    EXPECT_GT(sink->progress()[i].processed_tokens, sink->progress()[i - 1].processed_tokens);
  }
  for (const auto& other : sinks) EXPECT_TRUE(other->Wait().status.ok());
  EXPECT_TRUE(in_parts.WaitUntilIdle());
}

TEST(LocalEngineStreamingTest, ALongPromptTakesTheMemoryOfItsWindow) {
  // More by hand: RETROINFER_TEST_STREAMING_TOKENS=1000000.
  const char* const wanted = std::getenv("RETROINFER_TEST_STREAMING_TOKENS");
  const int64_t length = wanted == nullptr ? 100'000 : std::atoll(wanted);
  InProcessWorkerOptions options = Options(5000, length + 1000);
  std::atomic<int64_t> most_blocks = 0;
  std::atomic<InProcessWorker*> watched = nullptr;
  options.on_progress = [&] {
    if (InProcessWorker* const one = watched; one != nullptr) {
      most_blocks = std::max(most_blocks.load(), one->engine().stats().dense_blocks_used);
    }
  };
  InProcessWorker worker(options);
  const auto allocated = [&] {
    size_t bytes = 0;
    for (size_t i = 0; i < static_cast<size_t>(MemoryPurpose::kCount); ++i) {
      bytes += worker.device().allocated_bytes(static_cast<MemoryPurpose>(i));
    }
    return bytes;
  };
  EXPECT_TRUE(worker.Generate(Streaming(worker, 100, 5)).size() == 5);
  ASSERT_TRUE(worker.WaitUntilIdle());
  const size_t before = allocated();
  watched = &worker;
  EXPECT_EQ(worker.Generate(Streaming(worker, length, 200)).size(), 200u);
  ASSERT_TRUE(worker.WaitUntilIdle());
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(most_blocks, 1 + kWindow / 64 + 1);
  watched = nullptr;
  // Of the others neither can read it: their lane is shorter.
  auto sink = std::make_shared<test_support::CollectingSink>();
  GenerationRequest full = Streaming(worker, 6000, 5);
  full.attention.policy = PolicyKind::kFull;
  const absl::Status refused = worker.engine().Submit(full, sink);
  EXPECT_EQ(common::ReasonOf(refused).reason, "CAPACITY_EXCEEDED") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("or policy streaming"));
}

TEST(LocalEngineStreamingTest, RefusesWindowsThatCannotBe) {
  InProcessWorker worker(Options(5000));
  auto sink = std::make_shared<test_support::CollectingSink>();
  for (const int32_t window : {-1, 0, 63, kMaxStreamingWindow + 1}) {
    const absl::Status status = worker.engine().Submit(Streaming(worker, 10, 5, window), sink);
    EXPECT_EQ(common::ReasonOf(status).reason, "INVALID_ATTENTION") << window;
  }
  // One that no lane has room for, of a prompt that needs it.
  const absl::Status large = worker.engine().Submit(Streaming(worker, 9000, 5, 6000), sink);
  EXPECT_EQ(common::ReasonOf(large).reason, "CAPACITY_EXCEEDED");
  EXPECT_THAT(std::string(large.message()), HasSubstr("a prefill lane of 5000"));
  EXPECT_EQ(worker.Generate(Streaming(worker, 4500, 5, 6000)).size(), 5u) << "all of it is seen";
}

// Its rows are gone when the next part is read.
TEST(LocalEngineStreamingTest, AMeasuredPromptNeedsAnotherPolicy) {
  InProcessWorker worker(Options(1024));
  auto sink = std::make_shared<test_support::CollectingSink>();
  GenerationRequest request = Streaming(worker, 10, 5);
  request.num_prompt_logprobs = 0;
  const absl::Status status = worker.engine().Submit(request, sink);
  EXPECT_EQ(common::ReasonOf(status).reason, "INVALID_ATTENTION") << status;
}

TEST(LocalEngineStreamingTest, WhatEndsBetweenPartsLeavesNothing) {
  InProcessWorker worker(Options(300));
  for (int i = 0; i < 5; ++i) {
    GenerationRequest request = Streaming(worker, 60'000, 5);
    request.return_progress = true;
    const std::string id = request.request_id;
    const auto sink = worker.Submit(std::move(request));
    while (sink->progress().empty()) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(worker.engine().Abort(id));
    EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
  }
  EXPECT_TRUE(worker.WaitUntilIdle());
  EXPECT_EQ(worker.Generate(Streaming(worker, 700, 5)).size(), 5u);
}

}  // namespace
}  // namespace retroinfer
