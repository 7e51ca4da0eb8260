// Prefix reuse through both services: what a request finds changes nothing but time.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr int32_t kOutput = 60;
constexpr int64_t kCached = 46 * 64;  // of a prompt of 3000 tokens: two segments and 14 blocks

class PrefixReuseServicesTest : public testing::Test {
 protected:
  static ServiceOptions Options() {
    ServiceOptions options;
    options.arena_bytes = "128MiB";
    options.worker_arguments = {"--dense-below", "1024", "--dense-kv-bytes", "64MiB"};
    return options;
  }
  PrefixReuseServicesTest() : processes_(Options()) { processes_.StartBoth(); }

  struct Result {
    std::vector<int32_t> tokens;
    int64_t cached_tokens = 0;
  };
  static v1::GenerateRequest Request(uint64_t prompt, const std::string& salt,
                                     v1::AttentionPolicy policy = v1::ATTENTION_POLICY_WAVE) {
    v1::GenerateRequest request = SampledRequest(RandomTokens(3000, prompt), kOutput, 7, policy);
    request.set_cache_salt(salt);
    return request;
  }
  Result Run(const v1::GenerateRequest& request) {
    GenerateStream stream(processes_.worker_stub(), request);
    EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
    EXPECT_EQ(stream.num_tokens(), static_cast<size_t>(kOutput));
    return {stream.tokens(), stream.finished().cached_tokens()};
  }

  ServiceProcesses processes_;
};

TEST_F(PrefixReuseServicesTest, AHitGivesWhatAColdRunGives) {
  for (const auto policy : {v1::ATTENTION_POLICY_WAVE, v1::ATTENTION_POLICY_FULL}) {
    const Result cold = Run(Request(1, "cold" + std::to_string(policy), policy));
    EXPECT_EQ(cold.cached_tokens, 0);
    Run(Request(1, "tenant"));
    ASSERT_EQ(processes_.WaitUntilNothingIsHeld(), "");
    const Result hit = Run(Request(1, "tenant", policy));
    EXPECT_EQ(hit.cached_tokens, kCached);
    EXPECT_EQ(hit.tokens, cold.tokens);
  }
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

TEST_F(PrefixReuseServicesTest, ConcurrentRequestsComputeACommonBeginningOnce) {
  const Result cold = Run(Request(2, "cold"));
  std::vector<std::unique_ptr<GenerateStream>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<GenerateStream>(processes_.worker_stub(), Request(2, "")));
  }
  int64_t cached = 0;
  for (const auto& stream : streams) {
    EXPECT_TRUE(stream->Wait().ok()) << stream->Wait().error_message();
    EXPECT_EQ(stream->tokens(), cold.tokens);
    cached += stream->finished().cached_tokens();
  }
  // The segments at least: who comes while the blocks behind them are being saved computes those.
  EXPECT_GE(cached, 3 * 2 * 1024);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

TEST_F(PrefixReuseServicesTest, WhoWaitsForASegmentCanBeCancelled) {
  std::vector<std::unique_ptr<GenerateStream>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<GenerateStream>(processes_.worker_stub(), Request(3, "")));
  }
  for (const int victim : {2, 0}) streams[static_cast<size_t>(victim)]->Cancel();
  EXPECT_TRUE(streams[1]->Wait().ok()) << streams[1]->Wait().error_message();
  EXPECT_TRUE(streams[3]->Wait().ok()) << streams[3]->Wait().error_message();
  EXPECT_EQ(streams[1]->tokens(), streams[3]->tokens());
  streams.clear();
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

// Each fits into the idle arena, and takes nearly all of it: what the one before left must go.
TEST_F(PrefixReuseServicesTest, LargeDocumentsAreServedOneAfterTheOther) {
  for (uint64_t prompt = 10; prompt < 13; ++prompt) {
    GenerateStream stream(processes_.worker_stub(), SampledRequest(RandomTokens(19'900, prompt), 4,
                                                                   7, v1::ATTENTION_POLICY_WAVE));
    EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
  }
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

TEST_F(PrefixReuseServicesTest, SegmentsOutliveEitherProcess) {
  const Result cold = Run(Request(4, "cold"));
  Run(Request(4, ""));
  ASSERT_EQ(processes_.WaitUntilNothingIsHeld(), "");
  processes_.store().Kill();
  processes_.StartStore();
  ASSERT_TRUE(Eventually([&] { return processes_.WorkerIsServing(); }));
  const Result after_store = Run(Request(4, ""));
  EXPECT_EQ(after_store.cached_tokens, kCached);
  EXPECT_EQ(after_store.tokens, cold.tokens);
  processes_.worker().Kill();
  processes_.StartWorker();
  const Result after_worker = Run(Request(4, ""));
  EXPECT_EQ(after_worker.cached_tokens, kCached);
  EXPECT_EQ(after_worker.tokens, cold.tokens);
}

}  // namespace
}  // namespace retroinfer::test_support
