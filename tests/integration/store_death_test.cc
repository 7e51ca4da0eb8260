// The store is killed and stopped under a worker that serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr size_t kLongPrompt = 6000;  // segments of 1024 tokens, far over kDenseBelow
constexpr int32_t kLongOutput = 700;  // one more segment is built while decoding
constexpr size_t kShortPrompt = 200;

ServiceOptions Options() {
  ServiceOptions options;
  // A cache that does not hold all pages: evictions are going on.
  options.worker_arguments = {"--dense-below", "1024", "--block-cache-bytes", "2MiB"};
  return options;
}

v1::GenerateRequest LongRequest() {
  v1::GenerateRequest request = SampledRequest(RandomTokens(kLongPrompt, 1), kLongOutput, 7);
  // More pages than by default, so that hits, misses and evictions mix.
  request.mutable_attention()->set_retrieval_ratio(0.3);
  request.set_return_progress(true);
  return request;
}
v1::GenerateRequest ShortRequest() { return SampledRequest(RandomTokens(kShortPrompt, 2), 20, 8); }
v1::GenerateRequest FullRequest() {
  return SampledRequest(RandomTokens(2000, 3), 20, 9, v1::ATTENTION_POLICY_FULL);
}

class StoreDeathTest : public testing::Test {
 protected:
  StoreDeathTest() : processes_(Options()) { processes_.StartBoth(); }
  ~StoreDeathTest() override {
    if (!HasFailure()) return;
    std::fprintf(stderr, "%s\n%s\n", processes_.store().Log().c_str(),
                 processes_.worker().Log().c_str());
  }
  v1::GenerationService::Stub& stub() { return processes_.worker_stub(); }

  ServiceProcesses processes_;
};

TEST_F(StoreDeathTest, BothServeTheirMetrics) {
  Generate(stub(), ShortRequest());
  EXPECT_TRUE(Eventually([this] {
    return absl::StrContains(processes_.WorkerMetrics(),
                             "retroinfer_requests_total{finish_reason=\"length\"} 1");
  }));
  EXPECT_THAT(processes_.StoreMetrics(), testing::HasSubstr("retroinfer_build_info"));
}

TEST_F(StoreDeathTest, AKilledStoreCostsRunningRequestsNothingAndTheNextOneServesAgain) {
  const std::vector<int32_t> long_tokens = Generate(stub(), LongRequest());
  const std::vector<int32_t> short_tokens = Generate(stub(), ShortRequest());
  const std::vector<int32_t> full_tokens = Generate(stub(), FullRequest());
  ASSERT_EQ(long_tokens.size(), size_t{kLongOutput});
  ASSERT_GT(processes_.StoreStats().eviction_requests_total(), 0u);

  GenerateStream running(stub(), LongRequest());
  ASSERT_TRUE(running.WaitForTokens(50));
  ASSERT_GT(processes_.StoreStats().committed_segments(), 0u);
  processes_.store().Kill();
  const absl::Time killed = absl::Now();
  EXPECT_TRUE(Eventually([&] { return !processes_.WorkerIsServing(); }, absl::Seconds(5)));
  EXPECT_LT(running.num_tokens(), size_t{kLongOutput}) << "the stream ended before the store";

  // What needs the store is told so, what does not goes on.
  GenerateStream refused(stub(), LongRequest());
  EXPECT_EQ(Generate(stub(), FullRequest()), full_tokens);
  EXPECT_EQ(Generate(stub(), ShortRequest()), short_tokens);
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(absl::Now() - killed, absl::Seconds(5));
  EXPECT_EQ(refused.num_tokens(), 0u);
  EXPECT_FALSE(processes_.ModelInfo().stats().store_attached());

  EXPECT_TRUE(running.Wait().ok());
  EXPECT_EQ(running.tokens(), long_tokens);

  processes_.StartStore();
  EXPECT_TRUE(Eventually([&] { return processes_.WorkerIsServing(); }));
  EXPECT_EQ(Generate(stub(), LongRequest()), long_tokens);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
  EXPECT_EQ(processes_.StoreStats().memory_adoptions_total(), 1u);
  EXPECT_EQ(processes_.StoreStats().workers_attached_total(), 1u);
  EXPECT_TRUE(processes_.ModelInfo().stats().store_attached());
}

TEST_F(StoreDeathTest, StoresThatDieInPrefillAndDecodeAreReplacedUnderARunningRequest) {
  const std::vector<int32_t> tokens = Generate(stub(), LongRequest());
  // On a busy machine a request may end before the last store is there: then another one is tried.
  bool outlived_all = false;
  for (int time = 0; time < 10 && !outlived_all; ++time) {
    v1::GenerateRequest request = LongRequest();
    request.set_cache_salt(absl::StrCat(time));  // nothing of its prompt is there yet
    GenerateStream running(stub(), request);
    ASSERT_TRUE(running.WaitForProgress());
    for (const size_t num_tokens : {size_t{0}, size_t{100}, size_t{250}}) {
      if (!running.WaitForTokens(num_tokens)) break;
      processes_.store().Kill();
      processes_.StartStore();
      // Only the store knows that it is the new one that the worker is attached to. The request
      // before may have been on its way out when the old one died.
      EXPECT_TRUE(Eventually([&] {
        const auto stats = processes_.StoreStats();
        return stats.worker_attached() && (running.ended() || stats.sequences() == 1);
      }));
      EXPECT_EQ(processes_.StoreStats().memory_adoptions_total(), 1u);
    }
    // The new store knows the block cache and evicts from it.
    EXPECT_TRUE(Eventually([&] {
      outlived_all = processes_.StoreStats().evictions_applied_total() > 0;
      return outlived_all || running.ended();
    }));
    EXPECT_TRUE(running.Wait().ok());
    EXPECT_EQ(running.tokens(), tokens);
    EXPECT_EQ(processes_.WaitUntilNothingIsHeld(absl::Minutes(1)), "");
  }
  EXPECT_TRUE(outlived_all);
}

TEST_F(StoreDeathTest, AStoppedStoreRefusesNewRequestsInTimeAndRunningOnesGoOn) {
  const std::vector<int32_t> tokens = Generate(stub(), LongRequest());
  GenerateStream running(stub(), LongRequest());
  ASSERT_TRUE(running.WaitForTokens(50));
  processes_.store().Stop();
  const absl::Time stopped = absl::Now();
  GenerateStream refused(stub(), LongRequest());
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(5));
  EXPECT_TRUE(running.Wait().ok());
  EXPECT_EQ(running.tokens(), tokens);
  processes_.store().Signal(SIGCONT);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
  EXPECT_EQ(Generate(stub(), LongRequest()), tokens);
}

}  // namespace
}  // namespace retroinfer::test_support
