// Commands that contradict what the executor has are refused, one rule at a time.
#include "gpu_worker/executor/command_checker.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/command_harness.h"

namespace retroinfer {
namespace {

using test_support::CommandHarness;

// Sequence 1 decodes (90 tokens of at most 190), 2 is admitted, 3 is open, 4 was dropped.
class CommandCheckerTest : public testing::Test {
 protected:
  CommandCheckerTest() {
    harness_.Read(harness_.Opening(1, 90, 100));
    harness_.Admit(harness_.Opening(2, 50, 10));
    StepCommand open;
    open.open = {harness_.Opening(3, 50, 10), harness_.Opening(4, 50, 10)};
    harness_.CarryOut(std::move(open));
    harness_.CarryOut({.drop = {4}});
  }
  void ExpectRefused(const StepCommand& command, const char* what) {
    const absl::StatusOr<bool> is_ready = harness_.runner().IsReady(command);
    EXPECT_FALSE(is_ready.ok()) << what;
  }
  void ExpectAccepted(const StepCommand& command) {
    const absl::StatusOr<bool> is_ready = harness_.runner().IsReady(command);
    EXPECT_TRUE(is_ready.ok()) << is_ready.status();
  }
  static StepCommand::Row Row(int64_t position, int32_t token = 5, int32_t target = -1) {
    return {.id = 1, .token = token, .position = position, .target = target};
  }

  CommandHarness harness_{test_support::AvailableBackends().front().create()};
};

TEST_F(CommandCheckerTest, SequencesAreOpenedOnceAndFit) {
  StepCommand twice;
  twice.open = {harness_.Opening(9, 10, 10), harness_.Opening(9, 10, 10)};
  ExpectRefused(twice, "twice in one command");
  StepCommand known;
  known.open = {harness_.Opening(1, 10, 10)};
  ExpectRefused(known, "known already");
  StepCommand longer;
  longer.open = {harness_.Opening(9, 4000, 97)};
  ExpectRefused(longer, "longer than the model");
  longer.open = {harness_.Opening(9, 4000, 96)};
  ExpectAccepted(longer);
  longer.open[0].total_tokens = 3999;
  ExpectRefused(longer, "shorter than its prompt");
}

TEST_F(CommandCheckerTest, EachListHasItsStage) {
  for (const uint64_t id : {1, 3, 4, 99}) {
    ExpectRefused({.claim = {{.id = id}}}, "claim");
    ExpectRefused({.put_back = {id}}, "put_back");
    ExpectRefused({.begin = {{.members = {id}}}}, "begin");
  }
  for (const uint64_t id : {2, 3, 4, 99}) {
    ExpectRefused({.rewind = {id}}, "rewind");
    ExpectRefused({.give_back = {{id, {.dense = 5}}}}, "give_back");
    ExpectRefused({.suspend = {id}}, "suspend");
    ExpectRefused({.grow = {{id, {}}}}, "grow");
    ExpectRefused({.rows = {{.id = id, .token = 5, .position = 90}}}, "rows");
  }
  for (const uint64_t id : {1, 2, 3, 4, 99}) {
    ExpectRefused({.leave = {id}}, "leave");
    ExpectRefused({.rejoin = {id}}, "rejoin");
    ExpectRefused({.resume = {{id, {.dense = 3}}}}, "resume");
    ExpectRefused({.finish = {id}}, "finish");
  }
  for (const uint64_t id : {1, 2, 3, 99}) ExpectRefused({.let_go = {id}}, "let_go");
  ExpectRefused({.drop = {99}}, "drop");
  ExpectRefused({.end_save = {1}}, "end_save");
  ExpectAccepted({.let_go = {4}});
  ExpectAccepted({.drop = {4}});
  ExpectAccepted({.put_back = {2}});
  ExpectAccepted({.suspend = {1}});
  ExpectRefused({.suspend = {1, 1}}, "one list twice");
  ExpectRefused({.suspend = {1}, .grow = {{1, {}}}}, "two lists");
}

TEST_F(CommandCheckerTest, BlocksAreNoFewerThanNeededAndNoMoreThanCanBe) {
  ExpectRefused({.admit = {{3, {.dense = 1}}}}, "the prompt does not fit");
  ExpectAccepted({.admit = {{3, {.dense = 2}}}});
  ExpectRefused({.admit = {{3, {.dense = 3}}}}, "more than it can ever use");
  ExpectRefused({.admit = {{3, {.dense = 2, .meta = 1}}}}, "an index that it has not");
  ExpectRefused({.admit = {{3, {.dense = -1}}}}, "negative");
  ExpectRefused({.grow = {{1, {.dense = 1}}}}, "it has all");
}

TEST_F(CommandCheckerTest, RowsFollowTheSequence) {
  ExpectAccepted({.rows = {Row(90)}});
  ExpectRefused({.rows = {Row(89)}}, "a position that is taken");
  ExpectRefused({.rows = {Row(91)}}, "a position in front of which there is none");
  ExpectAccepted({.rows = {Row(90), Row(91), Row(92)}});
  ExpectRefused({.rows = {Row(90), Row(90)}}, "two rows of one position");
  ExpectRefused({.rows = {Row(91), Row(90)}}, "rows in another order than their positions");
  ExpectRefused({.rows = {Row(90, -1)}}, "no token");
  ExpectRefused({.rows = {Row(90, 1 << 30)}}, "no token of the vocabulary");
  ExpectRefused({.rows = {Row(90, 5, 6)}}, "a target of who draws");
  ExpectRefused({.rows = {Row(90), Row(91), Row(92), Row(93), Row(94)}}, "more than a batch");
}

TEST_F(CommandCheckerTest, GivenTokensAreFedAsTheyWereGiven) {
  StepCommand open;
  StepCommand::Open& opening = open.open.emplace_back(harness_.Opening(9, 90, 10));
  opening.given_tokens = 90;
  ExpectRefused(open, "nothing is read");
  opening.given_tokens = -1;
  ExpectRefused(open, "fewer than none");
  opening.given_tokens = 89;
  ExpectAccepted(open);
  opening.first_targets = {5};
  ExpectRefused(open, "who measures");
  opening.first_targets.clear();
  opening.num_prompt_logprobs = 0;
  ExpectRefused(open, "whose prompt is measured");
  opening.num_prompt_logprobs = -1;
  opening.given_tokens = 3;
  const std::vector<int32_t> prompt = opening.prompt;
  harness_.CarryOut(open);
  const KvBlocks blocks = harness_.BlocksFor(100);
  ASSERT_TRUE(harness_.CarryOut({.admit = {{9, blocks}}}).refused.ok());
  EXPECT_EQ(harness_.Compute(9).read.front().end, CommandResult::Read::End::kHead);
  ASSERT_EQ(harness_.CarryOutWhenReady({.finish = {9}}).finished.size(), 1u);
  const auto row = [&](int64_t at, int32_t token) {
    return StepCommand::Row{.id = 9, .token = token, .position = at};
  };
  ExpectAccepted({.rows = {row(87, prompt[87]), row(88, prompt[88]), row(89, prompt[89])}});
  ExpectRefused({.rows = {row(87, prompt[87] + 1)}}, "another token");
  ExpectRefused({.rows = {row(87, prompt[87]), row(88, prompt[87])}}, "another second token");
  ExpectRefused({.rows = {row(88, prompt[88])}}, "the first one left out");
  ExpectRefused(
      {.rows = {row(87, prompt[87]), row(88, prompt[88]), row(89, prompt[89]), row(90, 5)}},
      "a draft behind the last one");
}

TEST_F(CommandCheckerTest, RowsThatShareWhatTheyRetrieveAreInOneStep) {
  StepCommand open;
  StepCommand::Open& opening = open.open.emplace_back(harness_.Opening(9, 90, 10));
  opening.given_tokens = 5;
  opening.attention.policy = PolicyKind::kWave;
  opening.attention.tail_run = 2;
  const std::vector<int32_t> prompt = opening.prompt;
  harness_.CarryOut(open);
  ASSERT_TRUE(harness_.CarryOut({.admit = {{9, harness_.BlocksFor(100)}}}).refused.ok());
  harness_.Compute(9);
  ASSERT_EQ(harness_.CarryOutWhenReady({.finish = {9}}).finished.size(), 1u);
  const auto rows = [&](int64_t from, int64_t to) {
    StepCommand command;
    for (int64_t at = from; at < to; ++at) {
      command.rows.push_back({.id = 9, .token = prompt[static_cast<size_t>(at)], .position = at});
    }
    return command;
  };
  ExpectAccepted(rows(85, 87));
  ExpectAccepted(rows(85, 89));
  ExpectRefused(rows(85, 86), "half of a run");
  ExpectRefused(rows(85, 88), "a run and a half");
  ASSERT_TRUE(harness_.CarryOut(rows(85, 89)).refused.ok());
  ExpectAccepted(rows(89, 90));
}

TEST_F(CommandCheckerTest, PassesAreOfLanesThatThereAre) {
  ExpectRefused({.begin = {{.lane = 2, .members = {2}}}}, "no such lane");
  ExpectRefused({.begin = {{.lane = 0, .members = {}}}}, "nobody");
  ExpectRefused({.begin = {{.lane = 0, .members = {2}}, {.lane = 0, .members = {2}}}}, "twice");
  ExpectRefused({.begin = {{.lane = 0, .members = {2, 2}}}}, "a member twice");
  ExpectRefused({.passes = {{.lane = 2, .num_rows = 1}}}, "no such lane");
  ExpectRefused({.passes = {{.lane = 0, .num_rows = 257}}}, "more rows than a pass has");
  ExpectRefused({.passes = {{.lane = 0, .num_rows = 0}}}, "no rows");
  ExpectRefused({.begin = {{.lane = 0, .members = {2}}}, .passes = {{.lane = 0, .num_rows = 1}}},
                "passes of a group that begins");
  ExpectRefused({.measure = {{.lane = 7, .num_rows = 1}}}, "no such lane");
  ExpectAccepted({.begin = {{.lane = 0, .members = {2}}}});
  harness_.CarryOut({.begin = {{.lane = 0, .members = {2}}}});
  harness_.Admit(harness_.Opening(8, 50, 10));
  ExpectRefused({.begin = {{.lane = 0, .members = {8}}}}, "the lane has a group");
  ExpectAccepted({.begin = {{.lane = 1, .members = {8}}}});
}

}  // namespace
}  // namespace retroinfer
