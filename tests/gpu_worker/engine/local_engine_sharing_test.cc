// Prompts that begin with the same cached segments are read as one, and give what they give alone,
// bit by bit.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

using Tokens = std::vector<int32_t>;
using Sinks = std::vector<std::shared_ptr<CollectingSink>>;

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Holds the engine between two rounds.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    is_there_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_closed_; });
    is_there_ = false;
  }
  void Close() {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    is_there_ = false;
    changed_.wait(lock, [this] { return is_there_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    is_closed_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  bool is_there_ = false;
};

class LocalEngineSharingTest : public testing::Test {
 protected:
  explicit LocalEngineSharingTest(absl::Duration target = absl::Milliseconds(50)) {
    InProcessWorkerOptions options = SmallWorker();
    options.inter_token_target = target;
    options.on_progress = [this] { gate_.Pass(); };
    options.on_plan = [this](const SchedulerInput& input, const StepPlan& plan) {
      const std::lock_guard lock(mutex_);
      for (const StepPlan::Group& group : plan.begin) groups_.push_back(group.members.size());
      for (const StepPlan::Pass& pass : plan.passes) {
        reading_ = input.lanes[pass.lane].members.size();
      }
      if (on_plan_) on_plan_(plan);
    };
    worker_ = std::make_unique<InProcessWorker>(options);
    common_ = Random(7100, 1);  // six segments of 1024, and nearly a seventh
    other_ = Common(4000) + Random(3500, 2);
    WarmSegments();
  }
  // Leaves their segments alone in the arena, without blocks behind: what requests have in common
  // there is computed.
  void WarmSegments() {
    worker_->store().EvictUnused();
    Warm(Common(kSinkTokens + 6 * 1024) + Random(70, 90));
    Warm(Tokens(other_.begin(), other_.begin() + kSinkTokens + 7 * 1024) + Random(70, 91));
  }

  Tokens Random(int64_t length, uint64_t seed) {
    return RandomPrompt(length, worker_->config().vocab_size, seed);
  }
  Tokens Common(int64_t length) const { return Tokens(common_.begin(), common_.begin() + length); }

  GenerationRequest Request(Tokens prompt, PolicyKind policy = PolicyKind::kWave,
                            int32_t max_tokens = 12) {
    GenerationRequest request = worker_->Greedy(std::move(prompt), max_tokens, policy);
    request.sampling.num_logprobs = 0;
    return request;
  }
  // Leaves the prompt's segments in the arena.
  void Warm(const Tokens& prompt) {
    EXPECT_TRUE(worker_->Submit(Request(prompt, PolicyKind::kWave, 1))->Wait().status.ok());
    EXPECT_TRUE(worker_->WaitUntilIdle());
  }
  // Results of each alone, with nothing in the cache that it could find.
  Sinks Alone(const std::vector<GenerationRequest>& requests) {
    Sinks sinks;
    for (GenerationRequest request : requests) {
      request.cache_salt = "cold " + std::to_string(++num_cold_);
      sinks.push_back(worker_->Submit(request));
      EXPECT_TRUE(sinks.back()->Wait().status.ok()) << sinks.back()->Wait().status;
      EXPECT_EQ(sinks.back()->Wait().cached_tokens, 0);
      EXPECT_TRUE(worker_->WaitUntilIdle());
    }
    return sinks;
  }
  // All of them come at the same moment.
  Sinks Together(const std::vector<GenerationRequest>& requests) {
    gate_.Close();
    {
      const std::lock_guard lock(mutex_);
      groups_.clear();
    }
    before_ = worker_->engine().stats();
    Sinks sinks;
    for (const GenerationRequest& request : requests) sinks.push_back(worker_->Submit(request));
    gate_.Open();
    return sinks;
  }
  static void ExpectSame(const CollectingSink& got, const CollectingSink& want) {
    const absl::Status status = const_cast<CollectingSink&>(got).Wait().status;
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(got.tokens(), want.tokens());
    EXPECT_EQ(got.logprobs(), want.logprobs());
    const auto measured = got.measured(), wanted = want.measured();
    ASSERT_EQ(measured.size(), wanted.size());
    for (const auto& [number, tokens] : wanted) {
      ASSERT_EQ(measured.at(number).size(), tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(measured.at(number)[i].token, tokens[i].token);
        EXPECT_EQ(measured.at(number)[i].logprob, tokens[i].logprob);
      }
    }
  }
  void ExpectSameTogether(const std::vector<GenerationRequest>& requests) {
    const Sinks alone = Alone(requests);
    const Sinks together = Together(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i);
      together[i]->Wait();
      ExpectSame(*together[i], *alone[i]);
    }
    EXPECT_TRUE(worker_->WaitUntilIdle());
  }
  std::vector<size_t> groups() {
    const std::lock_guard lock(mutex_);
    return groups_;
  }
  // Bytes of the KV of so many cached tokens, all layers.
  uint64_t BytesOf(int64_t tokens) const {
    return static_cast<uint64_t>(tokens) * worker_->config().geometry(kBf16Kv).token_bytes();
  }

  Gate gate_;
  std::mutex mutex_;
  std::vector<size_t> groups_;  // sizes
  size_t reading_ = 0;
  std::function<void(const StepPlan&)> on_plan_;
  std::unique_ptr<InProcessWorker> worker_;
  EngineStats before_;
  Tokens common_, other_;
  int num_cold_ = 0;
};

TEST_F(LocalEngineSharingTest, QuestionsOnOnePrefixReadItOnce) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(Request(common_ + Random(20 + static_cast<int64_t>(i), 10 + i)));
  }
  ExpectSameTogether(requests);
  EXPECT_EQ(groups(), std::vector<size_t>{4});
  const EngineStats after = worker_->engine().stats();
  EXPECT_EQ(after.prefix_bytes_read - before_.prefix_bytes_read, BytesOf(6 * 1024));
  EXPECT_EQ(after.prefix_bytes_shared - before_.prefix_bytes_shared, 3 * BytesOf(6 * 1024));
  // The sink and what follows the last segment, for three of four and each layer.
  EXPECT_EQ(after.prefill_rows_shared - before_.prefill_rows_shared,
            3u * (7100 - 6 * 1024) * worker_->config().num_layers);
}

// A decode step of several attends to one index.
TEST_F(LocalEngineSharingTest, TheIndexOfThePrefixIsInTheDeviceOnce) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(Request(common_ + Random(20, 10 + i), PolicyKind::kWave, 2000));
  }
  const Sinks sinks = Together(requests);
  for (const auto& sink : sinks) {
    while (sink->tokens().size() < 2) absl::SleepFor(absl::Milliseconds(1));
  }
  // Of each only the segments of what it may generate, two.
  EXPECT_LE(worker_->engine().stats().meta_blocks_used, 6 + 4 * 2);
  for (const GenerationRequest& request : requests) worker_->engine().Abort(request.request_id);
  EXPECT_TRUE(worker_->WaitUntilIdle());
  EXPECT_EQ(worker_->engine().stats().meta_blocks_used, 0);
}

// Policies, tails with segments of their own, a longer beginning in the cache, one that is nothing
// but the beginning, twice the same, and those that are measured.
TEST_F(LocalEngineSharingTest, AllKindsOfMembersGiveWhatTheyGiveAlone) {
  std::vector<GenerationRequest> requests;
  requests.push_back(Request(common_ + Random(200, 10)));                    // builds a segment
  requests.push_back(Request(common_ + Random(180, 11)));                    // another one
  requests.push_back(Request(common_ + Random(30, 12), PolicyKind::kFull));  // and no segment
  requests.push_back(Request(other_ + Random(25, 13)));                      // parts in the cache
  requests.push_back(Request(common_));                                      // nothing but it
  requests.push_back(Request(common_ + Random(180, 11)));                    // the same again
  requests.push_back(Request(common_ + Random(40, 14), PolicyKind::kWave, 3));  // is scored
  requests.back().continuations = {{1, 2, 3}, {4, 5}};
  requests.push_back(Request(common_ + Random(7, 15), PolicyKind::kStreaming));
  ExpectSameTogether(requests);
  const std::vector<size_t> sizes = groups();
  EXPECT_GE(*std::max_element(sizes.begin(), sizes.end()), 4u);
  const EngineStats after = worker_->engine().stats();
  EXPECT_GE(after.prefix_bytes_shared - before_.prefix_bytes_shared, 3 * BytesOf(3 * 1024));
}

// Its rows are all computed, and nobody else's.
TEST_F(LocalEngineSharingTest, AMeasuredPromptIsReadBesideThemAlone) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 2; ++i) {
    requests.push_back(Request(common_ + Random(20, 10 + i)));
    requests.push_back(Request(Common(1500) + Random(20, 20 + i)));
    requests.back().num_prompt_logprobs = 0;
  }
  ExpectSameTogether(requests);
  EXPECT_EQ(worker_->engine().stats().prefix_bytes_shared - before_.prefix_bytes_shared,
            BytesOf(6 * 1024));
}

// Each plan has the fewest rows.
class SmallPassesTest : public LocalEngineSharingTest {
 protected:
  SmallPassesTest() : LocalEngineSharingTest(absl::Microseconds(100)) {}
};

TEST_F(SmallPassesTest, OneThatIsCancelledOrLateHarmsNoOther) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    requests.push_back(Request(common_ + Random(i % 2 == 0 ? 30 : 200, 10 + i)));
  }
  const Sinks alone = Alone(requests);
  for (const size_t gone : {size_t{0}, size_t{1}, size_t{4}}) {
    SCOPED_TRACE(gone);
    WarmSegments();
    std::atomic<int> plans = 0;
    std::atomic<bool> in_the_middle = false;
    {
      const std::lock_guard lock(mutex_);
      on_plan_ = [&](const StepPlan& plan) {
        if (plan.passes.empty()) return;
        if (++plans == 8) worker_->engine().Abort(requests[gone].request_id);
        in_the_middle = plans > 10;
      };
    }
    const Sinks together = Together(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      together[i]->Wait();
      if (i != gone) ExpectSame(*together[i], *alone[i]);
    }
    EXPECT_EQ(together[gone]->Wait().reason, FinishReason::kCancelled);
    EXPECT_TRUE(in_the_middle);
    EXPECT_TRUE(worker_->WaitUntilIdle());
    const std::lock_guard lock(mutex_);
    on_plan_ = nullptr;
  }
  requests[2].deadline = absl::Now() - absl::Seconds(1);
  const Sinks together = Together(requests);
  EXPECT_EQ(together[2]->Wait().reason, FinishReason::kDeadline);
  for (const size_t i : {size_t{0}, size_t{1}, size_t{3}, size_t{4}}) {
    together[i]->Wait();
    ExpectSame(*together[i], *alone[i]);
  }
  EXPECT_TRUE(worker_->WaitUntilIdle());
}

// Groups of one prefix, groups of none, cold prompts: whatever the order, each gives what it gives
// alone.
TEST_F(LocalEngineSharingTest, AnyMixOfPrefixesGivesWhatEachGivesAlone) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    const Tokens& beginning = i % 3 == 0 ? other_ : common_;
    const int64_t rest = std::array<int64_t, 4>{1, 60, 700, 1500}[i % 4];
    requests.push_back(Request(i % 5 == 4 ? Random(rest, 30 + i) : beginning + Random(rest, 30 + i),
                               i % 4 == 1 ? PolicyKind::kFull : PolicyKind::kWave));
  }
  ExpectSameTogether(requests);
  EXPECT_EQ(worker_->store().free_pages(), worker_->store().arena_pages());
}

}  // namespace
}  // namespace retroinfer
