#include "gpu_worker/server/response_queue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace retroinfer {
namespace {

using generation::v1::GenerateResponse;

OutputDelta Delta(std::string text, std::vector<int32_t> tokens) {
  OutputDelta delta;
  delta.text = std::move(text);
  for (const int32_t token : tokens) delta.tokens.push_back({token, NAN, {}});
  return delta;
}

TEST(ResponseQueue, KeepsTheOrderAndFillsIn) {
  ResponseQueue queue({"req", 7, true, false});
  PrefillProgress progress;
  progress.total_tokens = 7;
  progress.processed_tokens = 3;
  progress.elapsed = absl::Milliseconds(1500);
  queue.AddProgress(0, progress);
  queue.AddOutput(0, Delta("hé", {4, 5}), 2, 2);
  GenerationResult result;
  result.reason = FinishReason::kStop;
  result.matched_token = 9;
  result.seed = 18446744073709551615u;
  result.completion_tokens = 2;
  result.drafts_accepted = 1;
  result.drafts_rejected = 5;
  result.time_to_first_token = absl::Milliseconds(20);
  queue.AddFinished(0, result);

  GenerateResponse event;
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.request_id(), "req");
  EXPECT_EQ(event.progress().processed_tokens(), 3);
  EXPECT_EQ(event.progress().elapsed().seconds(), 1);
  EXPECT_EQ(event.progress().elapsed().nanos(), 500'000'000);
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.output().text(), "hé");
  EXPECT_EQ(event.output().token_ids_size(), 2);
  EXPECT_EQ(event.output().logprobs_size(), 0);
  EXPECT_EQ(event.output().prompt_tokens(), 7);
  EXPECT_EQ(event.output().cached_tokens(), 2);
  EXPECT_EQ(event.output().completion_tokens(), 2);
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.finished().reason(), generation::v1::FINISH_REASON_STOP);
  EXPECT_EQ(event.finished().matched_token_id(), 9);
  EXPECT_EQ(event.finished().seed(), 18446744073709551615u);
  EXPECT_EQ(event.finished().accepted_prediction_tokens(), 1);
  EXPECT_EQ(event.finished().rejected_prediction_tokens(), 5);
  EXPECT_EQ(event.finished().timings().time_to_first_token().nanos(), 20'000'000);
  EXPECT_FALSE(queue.Pop(&event));
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(ResponseQueue, MergesWhatWaitsWithoutLosingAnything) {
  ResponseQueue queue({"req", 1, true, false});
  PrefillProgress progress;
  for (int i = 1; i <= 5; ++i) {
    progress.processed_tokens = i;
    queue.AddProgress(0, progress);
  }
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    expected += std::to_string(i) + " ";
    queue.AddOutput(0, Delta(std::to_string(i) + " ", {i}), 0, i + 1);
  }
  GenerateResponse event;
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.progress().processed_tokens(), 5);
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.output().text(), expected);
  EXPECT_EQ(event.output().token_ids_size(), 100);
  EXPECT_EQ(event.output().token_ids(99), 99);
  EXPECT_EQ(event.output().completion_tokens(), 100);
  EXPECT_FALSE(queue.Pop(&event));
}

TEST(ResponseQueue, ContinuationsAreNotMixed) {
  ResponseQueue queue({"req", 1, false, false});
  for (int i = 0; i < 3; ++i) {
    queue.AddOutput(0, Delta("a", {1}), 0, i + 1);
    queue.AddOutput(1, Delta("b", {2}), 0, i + 1);
  }
  GenerateResponse event;
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.index(), 0);
  EXPECT_EQ(event.output().text(), "aaa");
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.index(), 1);
  EXPECT_EQ(event.output().text(), "bbb");
}

TEST(ResponseQueue, EventsStaySmallAndBytesAreCounted) {
  ResponseQueue queue({"req", 1, false, false});
  for (int i = 0; i < 100; ++i) queue.AddOutput(0, Delta(std::string(10'000, 'x'), {1}), 0, i + 1);
  EXPECT_GT(queue.bytes(), 1'000'000u);
  GenerateResponse event;
  size_t total = 0;
  while (queue.Pop(&event)) {
    total += event.output().text().size();
    EXPECT_LT(event.ByteSizeLong(), ResponseQueue::kMergeBytes + 20'000);
  }
  EXPECT_EQ(total, 1'000'000u);
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(ResponseQueue, LogprobsComeOnlyIfAskedFor) {
  ResponseQueue queue({"req", 1, false, true});
  OutputDelta delta;
  delta.text = "x";
  delta.tokens.push_back({3, -0.5f, {{3, -0.5f}, {4, -1.5f}}});
  queue.AddOutput(0, delta, 0, 1);
  GenerateResponse event;
  ASSERT_TRUE(queue.Pop(&event));
  ASSERT_EQ(event.output().logprobs_size(), 1);
  EXPECT_FLOAT_EQ(event.output().logprobs(0).logprob(), -0.5f);
  ASSERT_EQ(event.output().logprobs(0).alternatives_size(), 2);
  EXPECT_EQ(event.output().logprobs(0).alternatives(1).token_id(), 4);
}

TEST(ResponseQueue, ProgressIsDroppedUnlessWantedAndEmptyDeltasToo) {
  ResponseQueue queue({"req", 1, false, false});
  queue.AddProgress(0, {});
  queue.AddOutput(0, {}, 0, 0);
  GenerateResponse event;
  EXPECT_FALSE(queue.Pop(&event));
}

TEST(ResponseQueue, ClearForgetsEverything) {
  ResponseQueue queue({"req", 1, false, false});
  queue.AddOutput(0, Delta("x", {1}), 0, 1);
  queue.Clear();
  GenerateResponse event;
  EXPECT_FALSE(queue.Pop(&event));
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(ResponseQueue, ScoresOfAPromptBeginWithItsFirstToken) {
  ResponseQueue queue({.request_id = "r", .first_token = 42});
  OutputDelta delta = Delta("", {5, 6});
  delta.tokens[0].logprob = -1.5f;
  delta.tokens[0].rank = 1;
  queue.AddPrompt(delta);
  queue.AddPrompt(delta);
  generation::v1::GenerateResponse event;
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.prompt().first_token(), 0);
  ASSERT_EQ(event.prompt().tokens_size(), 5) << "merged";
  EXPECT_EQ(event.prompt().tokens(0).token_id(), 42);
  EXPECT_FALSE(event.prompt().tokens(0).has_logprob());
  EXPECT_EQ(event.prompt().tokens(1).logprob(), -1.5f);
  EXPECT_TRUE(event.prompt().tokens(1).is_greedy());
  EXPECT_FALSE(queue.Pop(&event));
  EXPECT_EQ(queue.bytes(), 0u);
  queue.AddPrompt(delta);
  ASSERT_TRUE(queue.Pop(&event));
  EXPECT_EQ(event.prompt().first_token(), 5);
  EXPECT_EQ(event.prompt().tokens_size(), 2);
}

}  // namespace
}  // namespace retroinfer
