// Requests that end at any moment, and processes that are asked to stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

// RETROINFER_TEST_SEED, or one that is the same every time.
uint64_t Seed() {
  const char* text = std::getenv("RETROINFER_TEST_SEED");
  uint64_t seed = 20240601;
  if (text != nullptr && !absl::SimpleAtoi(text, &seed)) seed = 0;
  return seed;
}

ServiceOptions Options() {
  ServiceOptions options;
  options.arena_bytes = "192MiB";
  options.worker_arguments = {"--dense-below",   "1024", "--block-cache-bytes", "2MiB",
                              "--drain-timeout", "2s",   "--max-batch",         "8"};
  return options;
}

v1::GenerateRequest LongRequest(int32_t max_tokens) {
  return SampledRequest(RandomTokens(3000, 1), max_tokens, 7);
}

class CancellationTest : public testing::Test {
 protected:
  CancellationTest() : processes_(Options()) { processes_.StartBoth(); }
  ~CancellationTest() override {
    if (HasFailure()) std::fprintf(stderr, "%s\n", processes_.store().Log().c_str());
  }

  // Sends `signal` to a worker with running, prefilling and waiting requests.
  void StopsInTimeOn(int signal) {
    std::vector<std::unique_ptr<GenerateStream>> streams;
    for (int i = 0; i < 10; ++i) {
      streams.push_back(
          std::make_unique<GenerateStream>(processes_.worker_stub(), LongRequest(8000)));
      ASSERT_TRUE(streams[0]->WaitForTokens(10));
    }
    // One that ends by itself while the worker drains.
    v1::GenerateRequest brief_request = SampledRequest(RandomTokens(100, 2), 40, 3);
    brief_request.set_priority(-1);
    GenerateStream brief(processes_.worker_stub(), brief_request);
    ASSERT_TRUE(brief.WaitForTokens(1));
    const absl::Time begin = absl::Now();
    processes_.worker().Signal(signal);
    EXPECT_TRUE(Eventually([&] { return !processes_.WorkerIsServing(); }, absl::Seconds(2)));
    const std::optional<int> status = processes_.worker().Wait(absl::Seconds(10));
    ASSERT_TRUE(status.has_value()) << "it did not stop";
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << "wait status " << *status;
    // The drain of 2 s, and at most 5 s for the last writes.
    EXPECT_LT(absl::Now() - begin, absl::Seconds(7));
    EXPECT_TRUE(brief.Wait().ok());
    EXPECT_EQ(brief.num_tokens(), 40u);
    for (const auto& stream : streams) {
      // Those that had a token keep what there is; the others may be asked for again elsewhere.
      const grpc::Status ended = stream->Wait();
      if (stream->num_tokens() == 0) {
        EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
        continue;
      }
      EXPECT_TRUE(ended.ok()) << ended.error_message();
      EXPECT_EQ(stream->finished().reason(), v1::FINISH_REASON_CANCELLED);
    }
    EXPECT_TRUE(Eventually([&] { return !processes_.StoreStats().worker_attached(); }));
    const kvstore::v1::GetStatsResponse stats = processes_.StoreStats();
    EXPECT_EQ(stats.free_pages() + stats.unreferenced_pages(), stats.arena_pages());
    EXPECT_EQ(stats.sequences(), 0u);
  }

  ServiceProcesses processes_;
};

// A request of any kind that ends in any way.
class RandomRequests {
 public:
  explicit RandomRequests(uint64_t seed) : random_(seed) {}

  v1::GenerateRequest Next() {
    const bool is_long = Below(3) == 0;
    const size_t prompt = is_long ? 1200 + Below(3000) : 1 + Below(400);
    v1::GenerateRequest request = SampledRequest(
        RandomTokens(prompt, random_()), 1 + static_cast<int32_t>(Below(200)), random_(),
        Below(4) == 0 ? v1::ATTENTION_POLICY_FULL : v1::ATTENTION_POLICY_WAVE);
    request.set_request_id(absl::StrCat("random-", ++num_requests_));
    if (Below(4) == 0) request.mutable_sampling()->set_n(2);
    if (Below(6) == 0) request.mutable_timeout()->set_nanos(1 + int32_t(Below(100'000'000)));
    request.set_return_progress(Below(2) == 0);
    return request;
  }
  // Ends `stream` at a random moment.
  void End(v1::GenerationService::Stub& stub, GenerateStream& stream, const std::string& id) {
    switch (Below(3)) {
      case 0:
        absl::SleepFor(absl::Microseconds(static_cast<int64_t>(Below(20'000))));
        break;
      case 1:
        stream.WaitForTokens(1 + Below(20), absl::Milliseconds(100));
        break;
      default:
        break;  // at once
    }
    if (Below(3) != 0) {
      stream.Cancel();
      return;
    }
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub.Abort(&context, request, &response).ok());
  }
  uint64_t Below(uint64_t bound) { return random_() % bound; }

 private:
  std::mt19937_64 random_;
  int num_requests_ = 0;
};

TEST_F(CancellationTest, CancellingAtRandomMomentsLeavesNothingBehind) {
  const uint64_t seed = Seed();
  std::printf("seed %llu (set RETROINFER_TEST_SEED to choose)\n",
              static_cast<unsigned long long>(seed));
  const std::vector<int32_t> tokens = Generate(processes_.worker_stub(), LongRequest(50));
  ASSERT_EQ(tokens.size(), 50u);

  RandomRequests requests(seed);
  struct Live {
    std::string id;
    std::unique_ptr<GenerateStream> stream;
  };
  std::vector<Live> live;
  size_t ended_early = 0;
  for (int i = 0; i < 300; ++i) {
    const v1::GenerateRequest request = requests.Next();
    live.push_back({request.request_id(),
                    std::make_unique<GenerateStream>(processes_.worker_stub(), request)});
    if (live.size() < 12) continue;
    const size_t victim = requests.Below(live.size());
    requests.End(processes_.worker_stub(), *live[victim].stream, live[victim].id);
    if (requests.Below(2) == 0) live[victim].stream->Wait();
    ended_early += live[victim].stream->finished().reason() != v1::FINISH_REASON_LENGTH ? 1 : 0;
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
  }
  live.clear();  // cancels the rest
  EXPECT_GT(ended_early, 100u);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(absl::Seconds(20)), "");
  EXPECT_EQ(Generate(processes_.worker_stub(), LongRequest(50)), tokens);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

TEST_F(CancellationTest, StopsOnSigtermWhileStreamsRun) { StopsInTimeOn(SIGTERM); }

TEST_F(CancellationTest, StopsOnSigintWhileStreamsRun) { StopsInTimeOn(SIGINT); }

TEST_F(CancellationTest, TheStoreStopsOnSigtermUnderARunningStream) {
  GenerateStream running(processes_.worker_stub(), LongRequest(200));
  ASSERT_TRUE(running.WaitForTokens(10));
  processes_.store().Signal(SIGTERM);
  const std::optional<int> status = processes_.store().Wait(absl::Seconds(5));
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  EXPECT_TRUE(running.Wait().ok());
  // Without a store the worker stops as well.
  processes_.worker().Signal(SIGTERM);
  const std::optional<int> worker = processes_.worker().Wait(absl::Seconds(7));
  ASSERT_TRUE(worker.has_value());
  EXPECT_TRUE(WIFEXITED(*worker) && WEXITSTATUS(*worker) == 0);
}

}  // namespace
}  // namespace retroinfer::test_support
