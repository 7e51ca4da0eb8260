// A worker of several ranks: what happens when any of its processes, or the store, is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"
#include "tests/support/decoded_trace.h"
#include "tests/support/temp_folder.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;
using testing::HasSubstr;

constexpr int32_t kOutput = 40;
constexpr int32_t kRepetitiveOutput = 200;

ServiceOptions Options(int num_ranks) {
  ServiceOptions options;
  options.worker_arguments = {"--dense-below",     "1024",
                              "--max-model-len",   "8192",
                              "--tensor-parallel", std::to_string(num_ranks)};
  return options;
}

v1::GenerateRequest LongRequest(int32_t max_tokens = kOutput) {
  v1::GenerateRequest request = SampledRequest(RandomTokens(3000, 1), max_tokens, 7);
  request.set_return_progress(true);
  return request;
}

// A text that says the same again and again, of which the likeliest tokens go on.
v1::GenerateRequest RepetitiveRequest() {
  const std::vector<int32_t> phrase = RandomTokens(25, 2);
  std::vector<int32_t> prompt;
  while (prompt.size() < 2000) prompt.insert(prompt.end(), phrase.begin(), phrase.end());
  v1::GenerateRequest request = SampledRequest(prompt, kRepetitiveOutput, 1);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

// Of the rank that was started last, by the log of rank 0; 0: it is not there.
pid_t PidOfRank(ChildProcess& worker, int rank) {
  const std::string log = worker.Log();
  const std::string mark = absl::StrCat("rank ", rank, " is process ");
  const size_t at = log.rfind(mark);
  if (at == std::string::npos) return 0;
  const size_t begin = at + mark.size();
  int pid = 0;
  EXPECT_TRUE(absl::SimpleAtoi(log.substr(begin, log.find('\n', begin) - begin), &pid));
  return pid;
}

bool IsGone(pid_t pid) { return ::kill(pid, 0) != 0; }

int NumGpus() {
  std::error_code none;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", none);
  return none ? 0 : static_cast<int>(std::distance(begin(gpus), end(gpus)));
}

class RanksServicesTest : public testing::Test {
 protected:
  explicit RanksServicesTest(int num_ranks = 2)
      : num_ranks_(num_ranks), processes_(Options(num_ranks)) {}
  void SetUp() override {
    if (processes_.options().device != "cpu" && NumGpus() < num_ranks_) {
      GTEST_SKIP() << "needs " << num_ranks_ << " GPUs, there are " << NumGpus();
    }
    processes_.StartBoth();
  }
  ~RanksServicesTest() override {
    if (!HasFailure() || IsSkipped()) return;
    std::fprintf(stderr, "%s\n%s\n", processes_.store().Log().c_str(),
                 processes_.worker().Log().c_str());
  }
  std::vector<int32_t> LongTokens() { return Generate(processes_.worker_stub(), LongRequest()); }
  // Prompt tokens that this worker has found in the store so far.
  int64_t CachedTokens() {
    const std::string name = "\nretroinfer_prefix_cache_hits_tokens_total ";
    const std::string metrics = processes_.WorkerMetrics();
    const size_t at = metrics.find(name);
    EXPECT_NE(at, std::string::npos);
    const size_t begin = at + name.size();
    double value = -1;
    EXPECT_TRUE(absl::SimpleAtod(metrics.substr(begin, metrics.find('\n', begin) - begin), &value));
    return static_cast<int64_t>(value);
  }
  // Tokens are those of a step each.
  void ExpectDraftsChangeNothing() {
    int64_t num_tried = 0;
    const auto answer = [&](v1::Speculation speculation) {
      v1::GenerateRequest request = RepetitiveRequest();
      request.set_speculation(speculation);
      GenerateStream stream(processes_.worker_stub(), request);
      EXPECT_TRUE(stream.Wait().ok());
      const v1::Finished end = stream.finished();
      num_tried = end.accepted_prediction_tokens() + end.rejected_prediction_tokens();
      return stream.tokens();
    };
    const std::vector<int32_t> plain = answer(v1::SPECULATION_OFF);
    ASSERT_EQ(plain.size(), size_t{kRepetitiveOutput});
    EXPECT_EQ(num_tried, 0);
    EXPECT_EQ(answer(v1::SPECULATION_AUTO), plain);
    std::printf("%lld drafts were tried\n", static_cast<long long>(num_tried));
    EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
  }
  // Waits for the end of rank 0 and of the others.
  std::optional<int> WaitForEnd(const std::vector<pid_t>& ranks) {
    const std::optional<int> status = processes_.worker().Wait(absl::Minutes(1));
    EXPECT_TRUE(Eventually([&] { return std::all_of(ranks.begin(), ranks.end(), IsGone); }))
        << "a rank outlives rank 0";
    return status;
  }

  const int num_ranks_;
  ServiceProcesses processes_;
};

TEST_F(RanksServicesTest, ARankThatIsKilledEndsAllAndContextsAreFoundAgain) {
  const std::vector<int32_t> tokens = LongTokens();
  ASSERT_EQ(tokens.size(), size_t{kOutput});
  EXPECT_EQ(CachedTokens(), 0);
  const pid_t rank = PidOfRank(processes_.worker(), 1);
  ASSERT_GT(rank, 0);
  GenerateStream running(processes_.worker_stub(), LongRequest(3000));
  ASSERT_TRUE(running.WaitForTokens(5));
  ::kill(rank, SIGKILL);
  const std::optional<int> status = WaitForEnd({rank});
  ASSERT_TRUE(status.has_value()) << "rank 0 goes on without rank 1";
  ASSERT_TRUE(WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), EXIT_FAILURE);
  EXPECT_FALSE(running.Wait().ok());
  EXPECT_THAT(processes_.worker().Log(), HasSubstr("rank 1 is lost"));
  EXPECT_THAT(processes_.worker().Log(), HasSubstr("signal 9"));

  processes_.StartWorker();
  EXPECT_EQ(LongTokens(), tokens);
  EXPECT_GT(CachedTokens(), 2000) << "the segments of both ranks were in the store";
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

TEST_F(RanksServicesTest, RanksEndWithRankZeroHoweverThatEnds) {
  const pid_t first = PidOfRank(processes_.worker(), 1);
  processes_.worker().Kill();
  EXPECT_TRUE(Eventually([first] { return IsGone(first); }));
  processes_.StartWorker();
  const pid_t second = PidOfRank(processes_.worker(), 1);
  ASSERT_NE(first, second);
  // A rank minds no signal that ends services: rank 0 may have requests to finish.
  ::kill(second, SIGTERM);
  ::kill(second, SIGINT);
  EXPECT_EQ(LongTokens().size(), size_t{kOutput});
  processes_.worker().Signal(SIGTERM);
  const std::optional<int> status = WaitForEnd({second});
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
}

TEST_F(RanksServicesTest, AStoreThatIsKilledComesBackToAllRanks) {
  const std::vector<int32_t> tokens = LongTokens();
  GenerateStream running(processes_.worker_stub(), LongRequest(400));
  ASSERT_TRUE(running.WaitForTokens(5));
  processes_.store().Kill();
  EXPECT_TRUE(Eventually([&] { return !processes_.WorkerIsServing(); }));
  EXPECT_TRUE(running.Wait().ok());
  EXPECT_EQ(running.num_tokens(), 400u);
  processes_.StartStore();
  EXPECT_TRUE(Eventually([&] { return processes_.WorkerIsServing(); }, absl::Minutes(1)));
  const int64_t before = CachedTokens();
  EXPECT_EQ(LongTokens(), tokens);
  EXPECT_GT(CachedTokens(), before + 2000);
  EXPECT_THAT(processes_.WorkerMetrics(), HasSubstr("retroinfer_rank_page_hits_total{rank=\"1\"}"));
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

// Where texts repeat themselves steps try drafts (how many, costs decide): ranks are told which
// were not drawn.
TEST_F(RanksServicesTest, AnswersWithDraftsAreThoseWithout) { ExpectDraftsChangeNothing(); }

// The small model is rank 0's alone, and changes no answer either; each rank records its KV heads.
class DraftingRanksServicesTest : public RanksServicesTest {
 protected:
  DraftingRanksServicesTest() {
    std::vector<std::string>& arguments = processes_.options().worker_arguments;
    arguments.insert(arguments.end(), {"--draft-model", processes_.options().model_folder,
                                       "--record-trace", trace_});
  }

  const TempFolder folder_;
  const std::string trace_ = folder_.path() + "/trace";
};

TEST_F(DraftingRanksServicesTest, ADraftModelAndTracesGoWithRanks) {
  EXPECT_THAT(processes_.worker().Log(), HasSubstr("for the draft model"));
  ExpectDraftsChangeNothing();
  processes_.worker().Signal(SIGTERM);
  ASSERT_TRUE(processes_.worker().Wait(absl::Minutes(1)).has_value());
  std::vector<DecodedTrace> traces;
  for (const std::string& path : {trace_, trace_ + ".rank1"}) {
    std::stringstream bytes;
    bytes << std::ifstream(path).rdbuf();
    traces.emplace_back(bytes.str());
    ASSERT_FALSE(traces.back().steps.empty()) << path;
  }
  EXPECT_EQ(traces[0].num_kv_heads, traces[1].num_kv_heads);
  EXPECT_EQ(traces[0].steps.size(), traces[1].steps.size());
}

// With more ranks than KV heads several have the same one; what they write is one rank's segment.
class FourRanksServicesTest : public RanksServicesTest {
 protected:
  FourRanksServicesTest() : RanksServicesTest(4) {}
};

TEST_F(FourRanksServicesTest, WhatFourRanksHaveWrittenOneReads) {
  const std::vector<int32_t> tokens = LongTokens();
  EXPECT_EQ(LongTokens(), tokens);
  EXPECT_GT(CachedTokens(), 2000);
  processes_.worker().Signal(SIGTERM);
  ASSERT_TRUE(processes_.worker().Wait(absl::Minutes(1)).has_value());
  processes_.options().worker_arguments = Options(1).worker_arguments;
  processes_.StartWorker();
  EXPECT_EQ(LongTokens().size(), size_t{kOutput});
  EXPECT_GT(CachedTokens(), 2000);
}

}  // namespace
}  // namespace retroinfer::test_support
