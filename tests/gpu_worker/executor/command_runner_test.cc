#include "gpu_worker/executor/command_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/kv/block_layout.h"
#include "tests/support/command_harness.h"

namespace retroinfer {
namespace {

using test_support::CommandHarness;
using testing::ElementsAre;

class CommandRunnerTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  int64_t Length(uint64_t id) { return runner_.Find(id)->kv.num_tokens; }
  int64_t RowsTogether(uint64_t id) {
    const Sequence& sequence = *runner_.Find(id);
    return sequence.policy->RowsTogether(sequence.kv);
  }

  CommandHarness harness_{GetParam().create()};
  CommandRunner& runner_ = harness_.runner();
  const KvMemory& memory_ = harness_.executor().memory();
};

TEST_P(CommandRunnerTest, CommandsDecodeWhatTheExecutorDecodes) {
  const auto made = harness_.parts().Make(1, 90, 60);
  harness_.parts().Read({made.get()});
  const int32_t expected_first = made->next_token;
  const std::vector<int32_t> expected = harness_.parts().Decode(*made, 30);
  harness_.executor().memory().Free(made->sequence.kv);

  const int32_t first = harness_.Read(harness_.Opening(1, 90, 60));
  EXPECT_EQ(first, expected_first);
  EXPECT_EQ(harness_.Decode(1, first, 30), expected);
  EXPECT_EQ(runner_.Find(1)->kv.num_tokens, 120);
  EXPECT_TRUE(harness_.CarryOut({.drop = {1}}).refused.ok());
  EXPECT_TRUE(harness_.CarryOutWhenReady({.let_go = {1}}).refused.ok());
  EXPECT_EQ(runner_.Find(1), nullptr);
  EXPECT_EQ(memory_.dense_blocks().num_used(), 0);
  EXPECT_TRUE(harness_.CarryOut({.let_go = {1}}).refused.code() ==
              absl::StatusCode::kFailedPrecondition);
}

// Of given tokens nothing is told but what the last one draws, in however many steps.
TEST_P(CommandRunnerTest, GivenTokensDrawOnce) {
  std::vector<std::vector<int32_t>> answers;
  for (const uint64_t rows_a_step : {1, 2, 3}) {
    StepCommand::Open open = harness_.Opening(rows_a_step, 90, 20);
    open.prompt = harness_.Opening(7, 90, 20).prompt;
    open.given_tokens = 5;
    const std::vector<int32_t> prompt = open.prompt;
    harness_.Admit(std::move(open));
    EXPECT_EQ(harness_.Compute(rows_a_step).read.front().end, CommandResult::Read::End::kHead);
    ASSERT_EQ(harness_.CarryOutWhenReady({.finish = {rows_a_step}}).finished.size(), 1u);
    EXPECT_EQ(Length(rows_a_step), 85);
    int32_t drawn = -1;
    while (Length(rows_a_step) < 90) {
      std::vector<StepCommand::Row> rows;
      for (int64_t at = Length(rows_a_step); at < 90 && rows.size() < rows_a_step; ++at) {
        rows.push_back(
            {.id = rows_a_step, .token = prompt[static_cast<size_t>(at)], .position = at});
      }
      const int64_t end = rows.back().position + 1;
      for (const CommandResult::Row& row : harness_.StepOf(rows)) {
        EXPECT_FALSE(row.is_rejected);
        if (!row.is_given) drawn = row.drawn.token.token;
      }
      EXPECT_EQ(Length(rows_a_step), end);
      EXPECT_EQ(drawn >= 0, end == 90);
    }
    answers.push_back(harness_.Decode(rows_a_step, drawn, 10));
    EXPECT_EQ(harness_.CarryOut({.drop = {rows_a_step}}).refused, absl::OkStatus());
    EXPECT_EQ(harness_.CarryOutWhenReady({.let_go = {rows_a_step}}).refused, absl::OkStatus());
  }
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

// Who draws knows which rows count; for others, see tests/gpu_worker/ranks.
TEST_P(CommandRunnerTest, WhoDrawsTakesNothingBack) {
  const int32_t first = harness_.Read(harness_.Opening(1, 90, 60));
  harness_.Decode(1, first, 3);
  EXPECT_EQ(runner_.drawing(), Drawing::kHere);
  EXPECT_EQ(runner_.TakeBack(1, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runner_.TakeBack(7, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Length(1), 93);
}

// Steps whose drafts are right up to some row, wrong from there on: the tokens, their log-
// probabilities and the length are those of a token a step, to the bit.
TEST_P(CommandRunnerTest, DraftsChangeNoToken) {
  for (const PolicyKind policy : {PolicyKind::kFull, PolicyKind::kStreaming}) {
    StepCommand::Open open = harness_.Opening(1, 90, 160, policy);
    open.attention.streaming_window = 64;
    open.sampling.temperature = 0.7f;
    open.sampling.seed = 5;
    open.sampling.frequency_penalty = 0.5f;
    StepCommand::Open again = open;
    again.id = 2;
    const int32_t first = harness_.Read(std::move(open));
    std::vector<OutputToken> want;
    for (int32_t token = first; want.size() < 150; token = want.back().token) {
      want.push_back(
          harness_.StepOf({{.id = 1, .token = token, .position = Length(1)}})[0].drawn.token);
    }
    ASSERT_EQ(harness_.Read(std::move(again)), first);
    std::vector<OutputToken> got;
    for (size_t step = 0; got.size() < want.size(); ++step) {
      const auto most =
          std::min({want.size() - got.size(), step % 4 + 1, static_cast<size_t>(RowsTogether(2))});
      const size_t num_right = std::min(step * 7 % 10, most - 1);
      std::vector<StepCommand::Row> rows;
      for (size_t i = 0; i < most; ++i) {
        int32_t token = got.size() + i == 0 ? first : want[got.size() + i - 1].token;
        if (i > num_right) token = (token + 1 + static_cast<int32_t>(i)) % 100;
        rows.push_back({.id = 2, .token = token, .position = Length(2) + static_cast<int64_t>(i)});
      }
      const std::vector<CommandResult::Row> results = harness_.StepOf(rows);
      ASSERT_EQ(results.size(), most);
      for (size_t i = 0; i < most; ++i) {
        ASSERT_EQ(results[i].is_rejected, i > num_right) << step << ", " << i;
        if (!results[i].is_rejected) got.push_back(results[i].drawn.token);
      }
      ASSERT_EQ(Length(2), 90 + std::ssize(got));
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].token, want[i].token) << i;
      ASSERT_EQ(got[i].logprob, want[i].logprob) << i;
    }
    harness_.CarryOut({.drop = {1, 2}});
    ASSERT_TRUE(harness_.CarryOutWhenReady({.let_go = {1, 2}}).refused.ok());
  }
}

TEST_P(CommandRunnerTest, HooksAreToldOfAcceptedCommandsOnly) {
  harness_.Admit(harness_.Opening(1, 20, 10));
  EXPECT_EQ(harness_.told(), "crcr");
  EXPECT_FALSE(harness_.CarryOut({.finish = {1}}).refused.ok());
  EXPECT_EQ(harness_.told(), "crcr");
}

TEST_P(CommandRunnerTest, ARefusedCommandDoesNothing) {
  harness_.Admit(harness_.Opening(1, 20, 10));
  StepCommand command{.drop = {1}, .finish = {2}};
  command.open.push_back(harness_.Opening(3, 20, 10));
  EXPECT_FALSE(harness_.CarryOut(std::move(command)).refused.ok());
  EXPECT_EQ(runner_.Find(3), nullptr);
  EXPECT_TRUE(harness_.CarryOut({.begin = {{.members = {1}}}}).refused.ok()) << "was not dropped";
}

TEST_P(CommandRunnerTest, WhoFindsNoMemoryStaysAsItWas) {
  harness_.Admit(harness_.Opening(1, 2500, 10));  // 41 of 64 blocks
  StepCommand open;
  open.open.push_back(harness_.Opening(2, 2500, 10));
  EXPECT_TRUE(harness_.CarryOut(std::move(open)).refused.ok());
  const StepCommand admit{.admit = {{2, CommandHarness::BlocksFor(2510)}}};
  EXPECT_THAT(harness_.CarryOut(admit).without_memory, ElementsAre(2));
  EXPECT_LT(runner_.Find(2)->kv.table_row, 0);
  EXPECT_TRUE(harness_.CarryOut({.put_back = {1}}).refused.ok());
  EXPECT_THAT(harness_.CarryOut(admit).without_memory, testing::IsEmpty());
}

TEST_P(CommandRunnerTest, ASequenceGrowsIsSuspendedAndGoesOnAsWithoutThat) {
  const int32_t first = harness_.Read(harness_.Opening(1, 90, 200));
  const std::vector<int32_t> expected = harness_.Decode(1, first, 120);

  StepCommand::Open open = harness_.Opening(1, 90, 200);
  open.id = 2;
  StepCommand opening;
  opening.open.push_back(std::move(open));
  EXPECT_TRUE(harness_.CarryOut(std::move(opening)).refused.ok());
  EXPECT_TRUE(harness_.CarryOut({.admit = {{2, CommandHarness::BlocksFor(90)}}}).refused.ok());
  harness_.Compute(2);
  EXPECT_THAT(harness_.CarryOutWhenReady({.finish = {2}}).finished, ElementsAre(2));
  std::vector<int32_t> tokens = harness_.Decode(2, first, 40);
  // 90 tokens and the sink take 3 blocks, for 132 tokens.
  const StepCommand::Row next{.id = 2, .token = tokens.back(), .position = 130};
  tokens.push_back(harness_.Step(2, tokens.back()));
  tokens.push_back(harness_.Step(2, tokens.back()));
  EXPECT_FALSE(harness_.CarryOut({.rows = {next}}).refused.ok());
  const StepCommand::Row beyond{.id = 2, .token = tokens.back(), .position = 132};
  EXPECT_FALSE(harness_.CarryOut({.rows = {beyond}}).refused.ok()) << "has no block for it";
  EXPECT_TRUE(harness_.CarryOut({.grow = {{2, {.dense = 2}}}}).refused.ok());
  for (int i = 0; i < 20; ++i) tokens.push_back(harness_.Step(2, tokens.back()));
  EXPECT_TRUE(harness_.CarryOutWhenReady({.suspend = {2}}).refused.ok());
  EXPECT_FALSE(harness_.CarryOut({.rows = {{.id = 2, .token = 1, .position = 152}}}).refused.ok());
  const int32_t used = memory_.dense_blocks().num_used();
  EXPECT_TRUE(harness_.CarryOutWhenReady({.leave = {2}}).refused.ok());
  EXPECT_EQ(memory_.dense_blocks().num_used(), used - 5);
  EXPECT_FALSE(harness_.CarryOut({.resume = {{2, {.dense = 2}}}}).refused.ok()) << "too few";
  EXPECT_TRUE(harness_.CarryOut({.resume = {{2, CommandHarness::BlocksFor(290)}}}).refused.ok());
  EXPECT_TRUE(harness_.CarryOutWhenReady({.rejoin = {2}}).refused.ok());
  while (tokens.size() < expected.size()) tokens.push_back(harness_.Step(2, tokens.back()));
  EXPECT_EQ(tokens, expected);
  EXPECT_FALSE(harness_.CarryOut({.give_back = {{2, {.dense = 4}}}}).refused.ok()) << "are in use";
  EXPECT_TRUE(harness_.CarryOut({.give_back = {{2, {.dense = 5}}}}).refused.ok());
}

TEST_P(CommandRunnerTest, WhatTheStoreSaysWronglyFailsItsSequenceAlone) {
  harness_.Admit(harness_.Opening(1, 200, 10));
  harness_.Admit(harness_.Opening(2, 200, 10));
  const uint32_t pages = BlockLayout(harness_.parts().geometry()).num_pages;
  const auto claim = [pages](uint64_t id, PageId first, uint32_t tokens, int64_t begin) {
    StepCommand::Claim claimed{.id = id};
    claimed.cached.push_back(
        {.extent = {.id = 9, .first_page = first, .num_pages = pages, .num_tokens = tokens},
         .token_begin = begin});
    return claimed;
  };
  StepCommand command;
  command.claim = {claim(1, 1 << 30, 64, 4), claim(2, 0, 64, 4)};
  const CommandResult& result = harness_.CarryOut(std::move(command));
  ASSERT_TRUE(result.refused.ok());
  ASSERT_EQ(result.failed.size(), 1u);
  EXPECT_EQ(result.failed[0].id, 1u);
  EXPECT_EQ(runner_.Find(2)->kv.cached_tokens(), 64);
  for (const StepCommand::Claim& wrong :
       {claim(2, 0, 64, 5), claim(2, 0, 1024, 4), claim(2, 4096 - pages + 1, 64, 4)}) {
    harness_.Admit(harness_.Opening(3, 200, 10));
    StepCommand claims;
    claims.claim = {wrong};
    claims.claim[0].id = 3;
    EXPECT_EQ(harness_.CarryOut(std::move(claims)).failed.size(), 1u);
    EXPECT_TRUE(harness_.CarryOutWhenReady({.let_go = {3}}).refused.ok());
  }
}

TEST_P(CommandRunnerTest, BlocksAreSavedWhereTheCommandSays) {
  const int32_t first = harness_.Read(harness_.Opening(1, 150, 20));
  StepCommand save;
  const uint32_t pages = BlockLayout(harness_.parts().geometry()).num_pages;
  const Extent extent{.id = 5, .first_page = 40, .num_pages = pages, .num_tokens = 64};
  save.save = {{.id = 1, .save_id = 8, .blocks = {{4, 64, extent}}}};
  EXPECT_THAT(harness_.CarryOut(save).unsaved, testing::IsEmpty());
  EXPECT_EQ(harness_.CarryOut(save).unsaved.size(), 1u) << "the name is in use";
  EXPECT_TRUE(runner_.copier().IsCopying(1));
  EXPECT_FALSE(harness_.CarryOut({.suspend = {1}}).refused.ok());
  harness_.CarryOut({.drop = {1}});
  EXPECT_FALSE(harness_.CarryOut({.let_go = {1}}).refused.ok()) << "its blocks are read";
  EXPECT_TRUE(harness_.CarryOutWhenReady({.end_save = {8}}).refused.ok());
  EXPECT_TRUE(harness_.CarryOutWhenReady({.let_go = {1}}).refused.ok());
  EXPECT_GE(first, 0);
}

// Numbers that somebody has made up, in commands for sequences in all stages.
class MadeUpCommands {
 public:
  explicit MadeUpCommands(CommandHarness& harness) : harness_(harness) {}

  StepCommand Next() {
    id_ = static_cast<uint64_t>(Below(6));
    switch (Below(3)) {
      case 0:
        return OfMemory();
      case 1:
        return OfPrompts();
      default:
        return OfSteps();
    }
  }

 private:
  int64_t Below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(end));
  }
  StepCommand::Blocks Blocks() {
    return {id_, {.dense = static_cast<int32_t>(Below(9)), .meta = static_cast<int32_t>(Below(3))}};
  }
  StepCommand OfMemory() {
    switch (Below(8)) {
      case 0:
        return Below(10) == 0 ? StepCommand{.drop = {id_}} : StepCommand{.let_go = {id_}};
      case 1:
        return {.claim = {{.id = id_}}};
      case 2:
        return Below(5) == 0 ? StepCommand{.put_back = {id_}} : StepCommand{.leave = {id_}};
      case 3:
        return {.rejoin = {id_}};
      case 4:
        return {.give_back = {Blocks()}};
      case 5:
        return {.suspend = {id_}};
      case 6:
        return {.grow = {Blocks()}};
      default:
        return {.resume = {Blocks()}};
    }
  }
  StepCommand OfPrompts() {
    const auto lane = static_cast<size_t>(Below(2));
    const PrefillLane& at = harness_.executor().lane(lane);
    const int64_t left = at.busy() ? at.num_rows() - at.next_row() : 7;
    const Sequence* const sequence = harness_.runner().Find(id_);
    StepCommand command;
    switch (Below(5)) {
      case 0: {
        const auto policy = static_cast<PolicyKind>(Below(3));
        command.open = {harness_.Opening(id_, 1 + Below(300), Below(300), policy)};
        if (Below(4) == 0) command.open[0].first_targets = {1, 2};
        if (Below(4) == 0) command.open[0].num_prompt_logprobs = 0;
        return command;
      }
      case 1: {
        if (sequence == nullptr || Below(2) == 0) return {.admit = {Blocks()}};
        return {.admit = {{id_, CommandHarness::BlocksFor(sequence->kv.total_tokens)}}};
      }
      case 2:
        return {.begin = {{.lane = static_cast<size_t>(Below(3)), .members = {id_}}}};
      case 3:
        return {.measure = {{.lane = lane, .num_rows = 1 + Below(9)}}};
      default:
        return {.passes = {{.lane = lane,
                            .layer = at.layer() + static_cast<uint32_t>(Below(8) / 7),
                            .first_row = at.next_row(),
                            .num_rows = std::min<int64_t>(left + Below(8) / 7, 256)}}};
    }
  }
  StepCommand OfSteps() {
    if (Below(4) == 0) return {.finish = {id_}};
    if (Below(20) == 0) return {.rewind = {id_}};
    const Sequence* const sequence = harness_.runner().Find(id_);
    const int64_t position = sequence == nullptr ? 0 : sequence->kv.num_tokens;
    StepCommand command;
    for (int64_t i = 0, rows = 1 + Below(3) / 2 * Below(11); i < rows; ++i) {
      command.rows.push_back(
          {.id = id_,
           .token = static_cast<int32_t>(Below(100)),
           .position = position + i + Below(8 * rows) / (8 * rows - 1),
           .target = i == 0 ? static_cast<int32_t>(Below(3)) - 1 : command.rows.front().target});
    }
    return command;
  }

  CommandHarness& harness_;
  std::mt19937_64 random_{11};
  uint64_t id_ = 0;
};

TEST_P(CommandRunnerTest, NoCommandDoesHarm) {
  MadeUpCommands made_up(harness_);
  uint64_t num_accepted = 0, num_refused = 0;
  for (int i = 0; i < 60000; ++i) {
    const StepCommand command = made_up.Next();
    runner_.Tend();
    const absl::StatusOr<bool> is_ready = runner_.IsReady(command);
    if (is_ready.ok() && !*is_ready) continue;
    const bool is_refused = !harness_.CarryOut(command).refused.ok();
    (is_refused ? num_refused : num_accepted) += 1;
  }
  EXPECT_GT(num_accepted, 1000u);
  EXPECT_GT(num_refused, 1000u);
  EXPECT_GT(harness_.executor().counters().decode_steps, 100u);
}

INSTANTIATE_TEST_SUITE_P(Backends, CommandRunnerTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
