#include "gpu_worker/executor/executor.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/executor_harness.h"

namespace retroinfer {
namespace {

using test_support::ExecutorHarness;

class ExecutorTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  ExecutorHarness harness_{GetParam().create()};
  Executor& executor_ = harness_.executor();
};

TEST_P(ExecutorTest, PromptsThatAreReadTogetherDecodeAsEachAlone) {
  const auto alone_a = harness_.Make(1, 70, 40);
  harness_.Read({alone_a.get()});
  const std::vector<int32_t> a = harness_.Decode(*alone_a, 20);
  const auto alone_b = harness_.Make(2, 130, 40);
  harness_.Read({alone_b.get()}, 1);
  const std::vector<int32_t> b = harness_.Decode(*alone_b, 20);

  const auto with_b = harness_.Make(1, 70, 40);
  const auto with_a = harness_.Make(2, 130, 40);
  harness_.Read({with_b.get(), with_a.get()});
  for (size_t i = 0; i < 20; ++i) {
    harness_.Step({with_b.get(), with_a.get()});
    EXPECT_EQ(with_b->next_token, a[i]) << i;
    EXPECT_EQ(with_a->next_token, b[i]) << i;
  }
  EXPECT_EQ(executor_.counters().decode_steps, 60u);
}

TEST_P(ExecutorTest, WhatAPromptEndsWithIsMeasuredAsOftenAsWanted) {
  const auto drawn = harness_.Make(1, 50, 10);
  harness_.Read({drawn.get()});
  const auto measured = harness_.Make(1, 50, 10);
  const auto other = harness_.Make(2, 20, 10);
  Sequence* const members[] = {&measured->sequence, &other->sequence};
  ASSERT_TRUE(executor_.BeginGroup(0, members).ok());
  harness_.Compute(0);
  Executor::FirstTokens firsts[] = {
      {.sequence = &measured->sequence, .targets = {drawn->next_token, 5, 6}},
      {.sequence = &other->sequence}};
  ASSERT_TRUE(executor_.SampleFirsts(firsts).ok());
  ASSERT_EQ(firsts[0].measured.size(), 3u);
  EXPECT_EQ(firsts[0].measured[0].token, drawn->next_token);
  EXPECT_EQ(firsts[0].measured[1].token, 5);
  EXPECT_EQ(firsts[0].measured[2].token, 6);
  EXPECT_GE(firsts[0].measured[0].logprob, firsts[0].measured[1].logprob)
      << "greedy takes the best";
  EXPECT_TRUE(firsts[1].measured.empty());
  const auto alone = harness_.Make(2, 20, 10);
  harness_.Read({alone.get()}, 1);
  EXPECT_EQ(firsts[1].drawn.token, alone->next_token) << "rounds of others change nothing";
}

TEST_P(ExecutorTest, RowsOfAPromptAreMeasuredInOrderAndKeepTheLane) {
  const auto one = harness_.Make(1, 40, 0, /*num_prompt_logprobs=*/0);
  Sequence* const members[] = {&one->sequence};
  ASSERT_TRUE(executor_.BeginGroup(0, members).ok());
  harness_.Compute(0);
  LaneDescription lane;
  executor_.DescribeLane(0, lane);
  EXPECT_FALSE(lane.is_free);
  EXPECT_EQ(lane.rows_to_measure, 39);
  std::vector<int32_t> tokens;
  while (one->sequence.PromptRowsLeft() > 0) {
    const int64_t rows =
        std::min<int64_t>(ExecutorHarness::kMaxBatch, one->sequence.PromptRowsLeft());
    const auto measured = executor_.MeasurePrompt(0, one->sequence, rows);
    ASSERT_TRUE(measured.ok()) << measured.status();
    for (const OutputToken& token : *measured) tokens.push_back(token.token);
  }
  EXPECT_EQ(tokens, std::vector<int32_t>(one->prompt.begin() + 1, one->prompt.end()));
  executor_.DescribeLane(0, lane);
  EXPECT_EQ(lane.rows_to_measure, 0);
  executor_.LeaveLanes(one->sequence);
  executor_.DescribeLane(0, lane);
  EXPECT_TRUE(lane.is_free);
}

TEST_P(ExecutorTest, OnlyTheNextPassOfAGroupCanRun) {
  const auto one = harness_.Make(1, 100, 10);
  Sequence* const members[] = {&one->sequence};
  EXPECT_FALSE(executor_.CanRun({.lane = 0, .layer = 0, .first_row = 0, .num_rows = 10}));
  ASSERT_TRUE(executor_.BeginGroup(0, members).ok());
  EXPECT_TRUE(executor_.CanRun({.lane = 0, .layer = 0, .first_row = 0, .num_rows = 100}));
  EXPECT_FALSE(executor_.CanRun({.lane = 1, .layer = 0, .first_row = 0, .num_rows = 100}));
  EXPECT_FALSE(executor_.CanRun({.lane = 0, .layer = 1, .first_row = 0, .num_rows = 100}));
  EXPECT_FALSE(executor_.CanRun({.lane = 0, .layer = 0, .first_row = 1, .num_rows = 10}));
  EXPECT_FALSE(executor_.CanRun({.lane = 0, .layer = 0, .first_row = 0, .num_rows = 101}));
  LaneDescription lane;
  lane.members.resize(1);
  executor_.DescribeRuns(0, lane);
  ASSERT_EQ(lane.runs.size(), 1u);
  EXPECT_EQ(lane.runs[0].rows, 100);
  EXPECT_EQ(lane.runs[0].depth, 0);
  ASSERT_TRUE(executor_.RunPass({.lane = 0, .num_rows = 60}).ok());
  EXPECT_TRUE(executor_.CanRun({.lane = 0, .layer = 0, .first_row = 60, .num_rows = 40}));
  executor_.Drop(one->sequence);
  executor_.LeaveLanes(one->sequence);
  EXPECT_FALSE(executor_.CanRun({.lane = 0, .layer = 0, .first_row = 60, .num_rows = 40}));
}

TEST_P(ExecutorTest, ASequenceGoesOnBehindASuspensionAsWithoutOne) {
  const auto steady = harness_.Make(1, 90, 60);
  harness_.Read({steady.get()});
  const std::vector<int32_t> expected = harness_.Decode(*steady, 30);

  const auto one = harness_.Make(1, 90, 60);
  Sequence& sequence = one->sequence;
  harness_.Read({one.get()});
  std::vector<int32_t> tokens = harness_.Decode(*one, 10);
  ASSERT_TRUE(executor_.CopyOut(sequence).ok());
  EXPECT_EQ(sequence.num_suspensions, 1);
  harness_.WaitForCopies(sequence);
  executor_.memory().Free(sequence.kv);
  const auto guest = harness_.Make(7, 200, 10);  // others use its blocks meanwhile
  harness_.Read({guest.get()});
  ASSERT_TRUE(executor_.memory().Reserve(sequence.policy->Need(sequence.kv.settings, 90, 150),
                                         sequence.kv));
  ASSERT_TRUE(executor_.CopyBack(sequence).ok());
  harness_.WaitForCopies(sequence);
  executor_.FreeCopy(sequence);
  for (const int32_t token : harness_.Decode(*one, 20)) tokens.push_back(token);
  EXPECT_EQ(tokens, expected);
}

TEST_P(ExecutorTest, MemoryIsUnusedOnceCopiesAndPolicyAreDone) {
  Sequence without_memory;
  EXPECT_TRUE(executor_.IsUnused(without_memory));
  const auto one = harness_.Make(1, 90, 60);
  harness_.Read({one.get()});
  ASSERT_TRUE(executor_.CopyOut(one->sequence).ok());
  while (!executor_.IsUnused(one->sequence)) std::this_thread::yield();
  EXPECT_TRUE(executor_.IsCopied(one->sequence).value());
  executor_.FreeCopy(one->sequence);
  EXPECT_EQ(executor_.parts().suspended->num_free(), 16);
}

INSTANTIATE_TEST_SUITE_P(Backends, ExecutorTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
