// Questions on texts that are on the disk: their tokens are those of texts in the arena, whatever
// comes when, and only what they ask for is read before their first token.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
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

using Tokens = std::vector<int32_t>;

constexpr int32_t kTail = 100;

class PartialSegmentsTest : public testing::Test {
 protected:
  PartialSegmentsTest() : worker_(Options()) {}

  static InProcessWorkerOptions Options() {
    InProcessWorkerOptions options = SmallWorker();
    options.max_batch = 8;
    options.serves_parts = true;
    return options;
  }
  Tokens Question(uint64_t seed, int64_t length = 4400) {
    Tokens prompt = RandomPrompt(length - kTail, worker_.config().vocab_size, 1);
    const Tokens more = RandomPrompt(kTail, worker_.config().vocab_size, seed);
    prompt.insert(prompt.end(), more.begin(), more.end());
    return prompt;
  }
  GenerationRequest Request(Tokens prompt, PrefillKind prefill = PrefillKind::kIndexed,
                            int32_t max_tokens = 12) {
    GenerationRequest request = worker_.Greedy(std::move(prompt), max_tokens);
    request.attention.prefill = prefill;
    request.attention.tail_tokens = kTail;
    request.sampling.num_logprobs = 1;
    return request;
  }
  std::shared_ptr<CollectingSink> Submit(GenerationRequest request) {
    request.request_id = absl::StrCat("request-", ++num_submitted_);
    return worker_.Submit(std::move(request));
  }
  std::shared_ptr<CollectingSink> Run(GenerationRequest request) {
    auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink;
  }
  // The text is in the store, and the answers to these questions are known.
  void ReadTextAndPutItOnDisk() {
    Run(Request(Question(100), PrefillKind::kExact, 1));
    for (const uint64_t seed : {200, 300}) want_.push_back(Run(Request(Question(seed))));
    ASSERT_TRUE(worker_.WaitUntilIdle());
    worker_.store().PutOnDisk();
  }
  static void ExpectSame(const CollectingSink& got, const CollectingSink& want) {
    EXPECT_EQ(got.tokens(), want.tokens());
    EXPECT_EQ(got.logprobs(), want.logprobs());
    EXPECT_FALSE(got.logprobs().empty());
  }
  void AwaitFetches(size_t count) {
    while (worker_.store().num_fetches() < count) absl::SleepFor(absl::Milliseconds(1));
  }

  std::vector<std::shared_ptr<CollectingSink>> want_;
  int num_submitted_ = 0;
  InProcessWorker worker_;
};

TEST_F(PartialSegmentsTest, TokensAreThoseOfATextInTheArena) {
  ReadTextAndPutItOnDisk();
  const auto got = Run(Request(Question(200)));
  EXPECT_GT(got->Wait().cached_tokens, 4000);
  ExpectSame(*got, *want_[0]);
  EXPECT_GT(worker_.store().num_fetches(), 0u);
  // Another question finds some of the pages there.
  const uint64_t before = worker_.store().num_parts_fetched();
  ExpectSame(*Run(Request(Question(300))), *want_[1]);
  EXPECT_LT(worker_.store().num_parts_fetched() - before, before);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

// A few requests for parts a step, not one a layer and row.
TEST_F(PartialSegmentsTest, WhatIsAskedForWithoutPagesIsMostlyWhatIsNeeded) {
  ReadTextAndPutItOnDisk();
  GenerationRequest request = Request(Question(200));
  request.sampling.max_tokens = 1;
  Run(std::move(request));
  const auto steps = static_cast<size_t>((kTail + 63 + 7) / 8);
  EXPECT_LE(worker_.store().num_fetches(), 4 * steps);
}

TEST_F(PartialSegmentsTest, QuestionsThatShareATextMayLackItTogether) {
  ReadTextAndPutItOnDisk();
  worker_.store().HoldParts();
  const auto first = Submit(Request(Question(200)));
  AwaitFetches(1);
  const auto second = Submit(Request(Question(300)));
  AwaitFetches(2);
  worker_.store().LetPartsGo();
  EXPECT_TRUE(first->Wait().status.ok());
  EXPECT_TRUE(second->Wait().status.ok());
  ExpectSame(*first, *want_[0]);
  ExpectSame(*second, *want_[1]);
}

TEST_F(PartialSegmentsTest, OthersGoOnWhileAQuestionWaitsForTheDisk) {
  ReadTextAndPutItOnDisk();
  worker_.store().HoldParts();
  const auto cold = Submit(Request(Question(200)));
  AwaitFetches(1);
  const auto other = Run(worker_.Greedy(RandomPrompt(300, worker_.config().vocab_size, 9), 20));
  EXPECT_EQ(other->tokens().size(), 20u);
  EXPECT_TRUE(cold->tokens().empty());
  worker_.store().LetPartsGo();
  EXPECT_TRUE(cold->Wait().status.ok());
  ExpectSame(*cold, *want_[0]);
}

TEST_F(PartialSegmentsTest, WhatDoesNotComeEndsTheRequestWithAReason) {
  ReadTextAndPutItOnDisk();
  worker_.store().HoldParts();
  const auto cold = Submit(Request(Question(200)));
  AwaitFetches(1);
  worker_.store().LetPartsGo(absl::DataLossError("the checksum of part 7 is wrong"));
  const GenerationResult& result = cold->Wait();
  EXPECT_TRUE(absl::IsUnavailable(result.status)) << result.status;
  EXPECT_EQ(common::ReasonOf(result.status).reason, "KV_NOT_READ");
  EXPECT_TRUE(cold->tokens().empty());
  // The next one gets on, and nothing of the first one's is left.
  worker_.store().LetPartsGo();
  ExpectSame(*Run(Request(Question(200))), *want_[0]);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(PartialSegmentsTest, AnAbortWhilePagesAreOnTheirWayLeavesNothing) {
  ReadTextAndPutItOnDisk();
  worker_.store().HoldParts();
  GenerationRequest request = Request(Question(200));
  const auto cold = Submit(std::move(request));
  AwaitFetches(1);
  EXPECT_TRUE(worker_.engine().Abort("request-4"));
  cold->Wait();
  EXPECT_TRUE(worker_.WaitUntilIdle());
  worker_.store().LetPartsGo();
  ExpectSame(*Run(Request(Question(300))), *want_[1]);
}

// Exact prompts, and those whose head is not found whole, read the text exactly.
TEST_F(PartialSegmentsTest, WhoReadsTheTextExactlyGetsItWhole) {
  const auto exact = Run(Request(Question(200), PrefillKind::kExact));
  const auto longer = Run(Request(Question(300, 6000)));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  worker_.store().EvictUnused();
  ReadTextAndPutItOnDisk();
  ExpectSame(*Run(Request(Question(300, 6000))), *longer);
  EXPECT_EQ(worker_.store().num_fetches(), 0u);
  ASSERT_TRUE(worker_.WaitUntilIdle());
  worker_.store().PutOnDisk();
  GenerationRequest fresh = Request(Question(200), PrefillKind::kExact);
  ExpectSame(*Run(std::move(fresh)), *exact);
  EXPECT_EQ(worker_.store().num_fetches(), 0u);
}

}  // namespace
}  // namespace retroinfer
