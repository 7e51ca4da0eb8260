// What a request finds in the store changes nothing but time: its tokens and their log
// probabilities are those of a cold run, bit by bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

constexpr int64_t kDenseBelow = 2048;

InProcessWorkerOptions SmallModel(const KvFormat& kv_format) {
  InProcessWorkerOptions options = SmallWorker();
  options.wave_index.dense_below = kDenseBelow;
  options.kv_format = kv_format;
  options.precision = kv_format == kF32Kv ? ComputePrecision::kF32 : ComputePrecision::kBf16;
  return options;
}

// What a second request with this prompt finds: segments and blocks. Its last token is computed.
int64_t CachedTokens(int64_t length) {
  return (length - 1 - kSinkTokens) / kDenseBlockTokens * kDenseBlockTokens;
}

class PrefixReuseTest : public testing::Test {
 protected:
  explicit PrefixReuseTest(InProcessWorkerOptions options = SmallModel(kBf16Kv))
      : worker_(std::move(options)) {}

  std::vector<int32_t> Prompt(int64_t length, uint64_t seed) {
    return RandomPrompt(length, worker_.config().vocab_size, seed);
  }
  GenerationRequest Request(std::vector<int32_t> prompt, int32_t max_tokens, std::string salt,
                            PolicyKind policy = PolicyKind::kWave) {
    GenerationRequest request = worker_.Greedy(std::move(prompt), max_tokens, policy);
    request.cache_salt = std::move(salt);
    request.sampling.num_logprobs = 0;
    return request;
  }
  std::shared_ptr<CollectingSink> Run(GenerationRequest request) {
    auto sink = worker_.Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink;
  }
  // A salt that nobody else has: nothing is found.
  std::shared_ptr<CollectingSink> RunCold(std::vector<int32_t> prompt, int32_t max_tokens,
                                          PolicyKind policy = PolicyKind::kWave) {
    auto sink =
        Run(Request(std::move(prompt), max_tokens, "cold " + std::to_string(++num_cold_), policy));
    EXPECT_EQ(sink->Wait().cached_tokens, 0);
    return sink;
  }
  static void ExpectSame(const CollectingSink& got, const CollectingSink& want) {
    EXPECT_EQ(got.tokens(), want.tokens());
    EXPECT_EQ(got.logprobs(), want.logprobs());
    EXPECT_FALSE(got.logprobs().empty());
  }
  void WaitForWaiting(size_t count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (worker_.store().num_waiting() != count) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void ExpectNoSlotUsed() {  // the engine asks its device now and then only
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (worker_.engine().stats().slots_used > 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_EQ(worker_.engine().stats().slots_used, 0);
  }
  void CheckHits(const std::vector<std::pair<int64_t, int32_t>>& shapes);

  InProcessWorker worker_;
  int num_cold_ = 0;
};

// Lengths of prompts and generations, each under both policies, first with another end of the
// prompt in the cache, then with the whole prompt.
void PrefixReuseTest::CheckHits(const std::vector<std::pair<int64_t, int32_t>>& shapes) {
  for (const auto& [length, max_tokens] : shapes) {
    const std::vector<int32_t> prompt = Prompt(length, static_cast<uint64_t>(length));
    std::vector<int32_t> other(prompt);
    other.resize(static_cast<size_t>(length * 2 / 3));
    for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, " << PolicyName(policy));
      const auto cold = RunCold(prompt, max_tokens, policy);
      const std::string salt = "warm " + std::to_string(length) + std::string(PolicyName(policy));
      Run(Request(other, 1, salt));
      const auto part = Run(Request(prompt, max_tokens, salt, policy));
      EXPECT_EQ(part->Wait().cached_tokens, std::ssize(other) - int64_t{kSinkTokens});
      ExpectSame(*part, *cold);
      Run(Request(prompt, 1, salt));
      ASSERT_TRUE(worker_.WaitUntilIdle());  // policy full does not wait for segments
      const auto all = Run(Request(prompt, max_tokens, salt, policy));
      EXPECT_EQ(all->Wait().cached_tokens, CachedTokens(length));
      ExpectSame(*all, *cold);
    }
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
  ExpectNoSlotUsed();
}

// The second shape generates 1200 tokens, so that segments join those that were found.
TEST_F(PrefixReuseTest, AHitGivesWhatAColdRunGives) {
  CheckHits({{2048, 20}, {3172, 1200}, {9300, 20}, {12000, 20}});
}

class ExactPrefixReuseTest : public PrefixReuseTest {
 protected:
  ExactPrefixReuseTest() : PrefixReuseTest(SmallModel(kF32Kv)) {}
};

TEST_F(ExactPrefixReuseTest, AHitGivesWhatAColdRunGivesInF32) {
  CheckHits({{2500, 20}, {3172, 1200}, {9300, 20}});
}

// Pages, centroids and value sums in three types.
class MixedPrefixReuseTest : public PrefixReuseTest {
 protected:
  MixedPrefixReuseTest() : PrefixReuseTest(SmallModel(kF16Kv)) {}
};

TEST_F(MixedPrefixReuseTest, AHitGivesWhatAColdRunGivesInF16) {
  if (!worker_.HasCodeFor(kF16Kv)) GTEST_SKIP() << "this backend has no code for f16";
  CheckHits({{3172, 1100}});
}

class StretchesTest : public PrefixReuseTest {
 protected:
  static InProcessWorkerOptions InStretches() {
    InProcessWorkerOptions options = SmallModel(kBf16Kv);
    options.max_model_len = 30000;
    options.stretches = {.least_tokens = 4096, .share_of_prefix = 0};
    return options;
  }
  StretchesTest() : PrefixReuseTest(InStretches()) {}
};

TEST_F(StretchesTest, APromptThatIsReadInStretchesGivesWhatOneGives) {
  InProcessWorkerOptions options = InStretches();
  options.stretches.least_tokens = 0;
  InProcessWorker whole(options);
  for (const int64_t length : {9000, 17000, 25500}) {
    const std::vector<int32_t> prompt = Prompt(length, static_cast<uint64_t>(length));
    for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, " << PolicyName(policy));
      GenerationRequest request = whole.Greedy(prompt, 20, policy);
      request.sampling.num_logprobs = 0;
      const auto want = whole.Submit(std::move(request));
      EXPECT_TRUE(want->Wait().status.ok());
      ExpectSame(*RunCold(prompt, 20, policy), *want);
    }
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
  ExpectNoSlotUsed();
}

TEST_F(StretchesTest, APromptThatIsCutOffLeavesItsStretches) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    const std::vector<int32_t> prompt = Prompt(25500, 3);
    const auto cold = RunCold(prompt, 5, policy);
    EXPECT_TRUE(worker_.WaitUntilIdle());
    const size_t before = worker_.store().num_committed();
    const std::string salt(PolicyName(policy));
    const GenerationRequest request = Request(prompt, 5, salt, policy);
    const auto cut = worker_.Submit(request);
    // Two segments of 8192 tokens, or the blocks of one stretch.
    while (worker_.store().num_committed() < before + 2) absl::SleepFor(absl::Milliseconds(1));
    worker_.engine().Abort(request.request_id);
    cut->Wait();
    const auto again = Run(Request(prompt, 5, salt, policy));
    EXPECT_GE(again->Wait().cached_tokens, 4096);
    ExpectSame(*again, *cold);
    EXPECT_TRUE(worker_.WaitUntilIdle());
  }
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
}

TEST_F(StretchesTest, OthersAreReadBetweenTheStretchesOfALongPrompt) {
  const std::vector<int32_t> prompt = Prompt(25500, 4);
  const auto cold = RunCold(prompt, 5);
  const auto sink = worker_.Submit(Request(prompt, 5, ""));
  const auto other = worker_.Submit(Request(Prompt(12000, 5), 5, ""));
  const auto same = worker_.Submit(Request(prompt, 5, ""));
  EXPECT_TRUE(other->Wait().status.ok());
  EXPECT_TRUE(same->Wait().status.ok());
  EXPECT_TRUE(sink->Wait().status.ok());
  ExpectSame(*sink, *cold);
  ExpectSame(*same, *cold);
}

TEST_F(PrefixReuseTest, OnlyTheSharedBeginningIsFound) {
  std::vector<int32_t> prompt = Prompt(5300, 1);
  Run(Request(prompt, 1, ""));
  prompt[2500] += prompt[2500] == 0 ? 1 : -1;  // in the third segment of 1024
  const auto sink = Run(Request(prompt, 10, ""));
  EXPECT_EQ(sink->Wait().cached_tokens, 2048);
  ExpectSame(*sink, *RunCold(prompt, 10));
  prompt[1] += prompt[1] == 0 ? 1 : -1;  // in the sink
  EXPECT_EQ(Run(Request(prompt, 1, ""))->Wait().cached_tokens, 0);
}

TEST_F(PrefixReuseTest, AnotherSaltNeverHits) {
  const std::vector<int32_t> prompt = Prompt(3000, 1);
  Run(Request(prompt, 1, "tenant a"));
  EXPECT_EQ(Run(Request(prompt, 1, "tenant b"))->Wait().cached_tokens, 0);
  EXPECT_EQ(Run(Request(prompt, 1, ""))->Wait().cached_tokens, 0);
  EXPECT_EQ(Run(Request(prompt, 1, "tenant a"))->Wait().cached_tokens, CachedTokens(3000));
}

TEST_F(PrefixReuseTest, WithExactKvTheNextTurnFindsThePromptButNotTheAnswer) {
  std::vector<int32_t> prompt = Prompt(3200, 1);
  const auto first = Run(Request(prompt, 1300, ""));
  EXPECT_GT(worker_.engine().stats().segments_built, 3u);  // some of generated tokens
  const std::vector<int32_t> answer = first->tokens();
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  const auto second = Run(Request(prompt, 20, ""));
  EXPECT_EQ(second->Wait().cached_tokens, 49 * 64);  // whole blocks of the prompt
  EXPECT_EQ(second->Wait().cached_generated_tokens, 0);
  ExpectSame(*second, *RunCold(prompt, 20));
}

TEST_F(PrefixReuseTest, ConcurrentRequestsComputeACommonBeginningOnce) {
  const std::vector<int32_t> common = Prompt(6300, 1);  // six segments of 1024
  std::vector<std::shared_ptr<CollectingSink>> sinks, cold;
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = common;
    const std::vector<int32_t> rest = Prompt(40, 100 + i);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    prompts.push_back(prompt);
  }
  for (const auto& prompt : prompts) {
    cold.push_back(RunCold(prompt, 30));
    EXPECT_TRUE(worker_.WaitUntilIdle());
  }
  const uint64_t before = worker_.engine().stats().segments_built;
  for (const auto& prompt : prompts) sinks.push_back(worker_.Submit(Request(prompt, 30, "")));
  int64_t cached = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->Wait().status.ok());
    ExpectSame(*sinks[i], *cold[i]);
    cached += sinks[i]->Wait().cached_tokens;
  }
  EXPECT_GE(cached, 3 * 6 * 1024);  // and blocks behind, where they were saved in time
  EXPECT_TRUE(worker_.WaitUntilIdle());
  EXPECT_EQ(worker_.engine().stats().segments_built - before, 6u);
}

TEST_F(PrefixReuseTest, WhoWaitsForASegmentCanBeCancelled) {
  const std::vector<int32_t> prompt = Prompt(12000, 1);
  const auto first = worker_.Submit(Request(prompt, 5, ""));
  while (worker_.store().num_sequences() == 0) absl::SleepFor(absl::Milliseconds(1));
  const GenerationRequest request = Request(prompt, 5, "");
  const auto second = worker_.Submit(request);
  WaitForWaiting(1);
  EXPECT_TRUE(worker_.engine().Abort(request.request_id));
  EXPECT_EQ(second->Wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(first->Wait().status.ok());
  EXPECT_TRUE(worker_.WaitUntilIdle());
  EXPECT_EQ(worker_.store().num_waiting(), 0u);
}

TEST_F(PrefixReuseTest, WhoWaitsComputesByItselfWhenTheOtherEnds) {
  const std::vector<int32_t> prompt = Prompt(12000, 1);
  const auto cold = RunCold(prompt, 5);
  const GenerationRequest request = Request(prompt, 5, "");
  const auto first = worker_.Submit(request);
  while (worker_.store().num_sequences() == 0) absl::SleepFor(absl::Milliseconds(1));
  const auto second = worker_.Submit(Request(prompt, 5, ""));
  WaitForWaiting(1);
  EXPECT_TRUE(worker_.engine().Abort(request.request_id));
  EXPECT_EQ(first->Wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(second->Wait().status.ok()) << second->Wait().status;
  // Where a machine was slow, the first had read its prompt by then: its segments are complete.
  if (first->tokens().empty()) {
    EXPECT_EQ(second->Wait().cached_tokens, 0);
  }
  ExpectSame(*second, *cold);
}

TEST_F(PrefixReuseTest, SequencesShareSegmentsWhoeverEndsFirst) {
  const std::vector<int32_t> prompt = Prompt(4300, 1);
  const auto cold = RunCold(prompt, 600);
  const GenerationRequest endless = Request(prompt, 6000, "");
  const auto owner = worker_.Submit(endless);
  while (owner->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
  const auto user = worker_.Submit(Request(prompt, 600, ""));
  while (user->tokens().size() < 50) absl::SleepFor(absl::Milliseconds(1));
  worker_.engine().Abort(endless.request_id);  // its extents live on in the other one
  owner->Wait();
  const auto last = worker_.Submit(Request(prompt, 600, ""));
  EXPECT_TRUE(user->Wait().status.ok());
  EXPECT_TRUE(last->Wait().status.ok());
  EXPECT_EQ(user->Wait().cached_tokens, CachedTokens(4300));
  ExpectSame(*user, *cold);
  ExpectSame(*last, *cold);
  EXPECT_TRUE(worker_.WaitUntilIdle());
  ExpectNoSlotUsed();
}

TEST_F(PrefixReuseTest, CachedTokensAreReportedAndCounted) {
  const std::vector<int32_t> prompt = Prompt(3000, 1);
  Run(Request(prompt, 1, ""));
  const EngineStats before = worker_.engine().stats();
  GenerationRequest request = Request(prompt, 2, "");
  request.return_progress = true;
  const auto sink = Run(std::move(request));
  ASSERT_FALSE(sink->progress().empty());
  const int64_t cached = CachedTokens(3000);
  EXPECT_EQ(sink->progress().front().cached_tokens, cached);
  EXPECT_GT(sink->progress().front().processed_tokens, cached);
  EXPECT_EQ(sink->progress().back().processed_tokens, 3000);
  EXPECT_EQ(sink->Wait().cached_tokens, cached);
  EXPECT_TRUE(worker_.WaitUntilIdle());
  const EngineStats after = worker_.engine().stats();
  EXPECT_EQ(after.prefix_cache_queries_tokens - before.prefix_cache_queries_tokens, 3000u);
  EXPECT_EQ(after.prefix_cache_hits_tokens - before.prefix_cache_hits_tokens,
            static_cast<uint64_t>(cached));
}

TEST_F(PrefixReuseTest, WithoutAStorePolicyFullDoesWithoutTheCache) {
  const std::vector<int32_t> prompt = Prompt(3000, 1);
  const auto cold = RunCold(prompt, 5, PolicyKind::kFull);
  Run(Request(prompt, 1, ""));
  worker_.store().set_attached(false);
  const auto sink = Run(Request(prompt, 5, "", PolicyKind::kFull));
  EXPECT_EQ(sink->Wait().cached_tokens, 0);
  ExpectSame(*sink, *cold);
  worker_.store().set_attached(true);
}

InProcessWorkerOptions LittleArena() {
  InProcessWorkerOptions options = SmallModel(kBf16Kv);
  options.arena_bytes = size_t{12} << 20;
  return options;
}

class LittleArenaTest : public PrefixReuseTest {
 protected:
  LittleArenaTest() : PrefixReuseTest(LittleArena()) {}
};

TEST_F(LittleArenaTest, EvictedSegmentsAreComputedAgain) {
  std::vector<std::shared_ptr<CollectingSink>> first;
  for (uint64_t i = 0; i < 12; ++i) first.push_back(Run(Request(Prompt(2300, i), 10, "")));
  EXPECT_GT(worker_.store().num_evicted(), 0u);
  int64_t cached = 0;
  for (uint64_t i = 12; i-- > 0;) {  // the last ones are still there
    const auto again = Run(Request(Prompt(2300, i), 10, ""));
    ExpectSame(*again, *first[i]);
    cached += again->Wait().cached_tokens;
  }
  EXPECT_GT(cached, 0);
  EXPECT_LT(cached, 12 * CachedTokens(2300));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  worker_.store().EvictUnused();
  EXPECT_EQ(Run(Request(Prompt(2300, 0), 10, ""))->Wait().cached_tokens, 0);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

}  // namespace
}  // namespace retroinfer
