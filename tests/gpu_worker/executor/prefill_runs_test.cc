#include "gpu_worker/executor/prefill_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "common/kv/kv_geometry.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kDenseBelow = 2048;

using Tokens = std::vector<int32_t>;

struct Prompt {
  Tokens tokens;
  size_t cached = 0;  // segments
  bool may_share = true;
  std::vector<CachedRun> runs = {};  // the leading `cached` segments of its plan
};

Tokens Repeat(int64_t count, int32_t token) { return Tokens(static_cast<size_t>(count), token); }
Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefillRunsTest : public testing::Test {
 protected:
  void Add(Tokens tokens, size_t cached, bool may_share = true, std::string salt = "") {
    prompts_.push_back({.tokens = std::move(tokens), .cached = cached, .may_share = may_share});
    const NamedPrefix prefix = NamePrefix(prompts_.back().tokens, kDenseBelow, "model", salt);
    ASSERT_LE(cached, prefix.names.size());
    for (size_t i = 0; i < cached; ++i) {
      const PlannedSegment& segment = prefix.segments[i];
      prompts_.back().runs.push_back({.extent = {.num_tokens = segment.num_tokens},
                                      .name = prefix.names[i],
                                      .token_begin = segment.token_begin});
    }
  }

  PrefillRuns Plan() {
    std::vector<RunMember> members;
    for (const Prompt& prompt : prompts_) {
      members.push_back({.prompt = prompt.tokens,
                         .cached = prompt.runs,
                         .begin = 0,
                         .end = std::ssize(prompt.tokens),
                         .may_share = prompt.may_share});
    }
    return PlanRuns(members);
  }

  // Carries the runs out on the KV of each prefix_group: what a row attends to must be what its
  // prompt has there, and each prompt is read or computed from end to end.
  void Check(const PrefillRuns& plan) {
    std::map<std::pair<size_t, int64_t>, int32_t>
        kv;  // by prefix_group and position: the token there
    std::vector<int64_t> done(prompts_.size(), 0);
    int64_t rows = 0;
    for (const PrefillRun& run : plan.runs) {
      ASSERT_EQ(run.first_row, rows);
      ASSERT_GT(run.num_rows, 0);
      rows += run.num_rows;
      for (const CachedRead& read : run.reads) Read(plan, run, read, kv, done);
      for (int64_t i = 0; i < run.num_rows; ++i) {
        const int64_t at = run.first_position + i;
        kv[{run.prefix_group, at}] = TokenAt(run.members.front(), at);
      }
      for (const size_t member : run.members) {
        ASSERT_EQ(plan.prefix_group_of[member], run.prefix_group);
        ASSERT_EQ(done[member], run.first_position);
        done[member] += run.num_rows;
        for (int64_t at = 0; at < done[member]; ++at) {
          ASSERT_EQ((kv[{run.prefix_group, at}]), TokenAt(member, at)) << "member " << member;
        }
        const bool ends = done[member] == std::ssize(prompts_[member].tokens);
        ASSERT_EQ(std::ranges::count(run.ends_with_it, member), ends ? 1 : 0);
      }
    }
    for (size_t i = 0; i < prompts_.size(); ++i) EXPECT_EQ(done[i], std::ssize(prompts_[i].tokens));
  }

  std::vector<Prompt> prompts_;

 private:
  int32_t TokenAt(size_t member, int64_t position) const {
    return prompts_[member].tokens[static_cast<size_t>(position)];
  }
  void Read(const PrefillRuns& plan, const PrefillRun& run, const CachedRead& read,
            std::map<std::pair<size_t, int64_t>, int32_t>& kv, std::vector<int64_t>& done) {
    const CachedRun& segment = prompts_[read.members.front()].runs[read.index];
    for (int64_t i = 0; i < segment.num_tokens(); ++i) {
      const int64_t at = segment.token_begin + i;
      kv[{run.prefix_group, at}] = TokenAt(read.members.front(), at);
    }
    for (const size_t member : read.members) {
      EXPECT_LT(read.index, prompts_[member].cached);
      EXPECT_EQ(plan.prefix_group_of[member], run.prefix_group);
      EXPECT_EQ(done[member], segment.token_begin);
      done[member] += segment.num_tokens();
    }
  }
};

int64_t RowsOf(const PrefillRuns& plan) {
  return plan.runs.empty() ? 0 : plan.runs.back().first_row + plan.runs.back().num_rows;
}

TEST_F(PrefillRunsTest, APromptAloneIsItsSinkAndWhatIsBehindTheCache) {
  Add(Repeat(3000, 1), 2);
  Add(Repeat(10, 2), 0);
  const PrefillRuns plan = Plan();
  Check(plan);
  ASSERT_EQ(plan.runs.size(), 3u);
  EXPECT_EQ(plan.runs[0].num_rows, 4);
  EXPECT_THAT(plan.runs[0].reads, IsEmpty());
  EXPECT_EQ(plan.runs[1].first_position, 4 + 2048);
  EXPECT_EQ(plan.runs[1].num_rows, 3000 - 2052);
  EXPECT_EQ(plan.runs[1].reads.size(), 2u);
  EXPECT_EQ(plan.runs[2].num_rows, 10);
  EXPECT_EQ(plan.num_prefix_groups, 2u);
}

TEST_F(PrefillRunsTest, WhatSeveralHaveInCommonIsReadAndComputedOnce) {
  const Tokens common = Repeat(3000, 1);
  Add(common + Repeat(20, 2), 2);
  Add(common + Repeat(30, 3), 2);
  Add(common, 2);                  // ends where the others go on
  Add(common + Repeat(20, 2), 2);  // the same as the first
  const PrefillRuns plan = Plan();
  Check(plan);
  EXPECT_EQ(plan.num_prefix_groups, 1u);
  EXPECT_EQ(RowsOf(plan), 4 + (3000 - 2052) + 20 + 30);
  ASSERT_EQ(plan.runs.size(), 4u);
  EXPECT_THAT(plan.runs[1].members, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.runs[1].ends_with_it, ElementsAre(2));
  EXPECT_EQ(plan.runs[1].reads.size(), 2u);
  EXPECT_THAT(plan.runs[2].members, ElementsAre(0, 3));
  EXPECT_THAT(plan.runs[2].ends_with_it, ElementsAre(0, 3));
}

TEST_F(PrefillRunsTest, PromptsThatPartInTheCacheReadTheRestForThemselves) {
  const Tokens common = Repeat(2052, 1);  // the sink and two segments
  Add(common + Repeat(2200, 2), 4);
  Add(common + Repeat(2200, 3), 4);
  Add(common + Repeat(2200, 3), 3);  // of the same text it has found less
  const PrefillRuns plan = Plan();
  Check(plan);
  EXPECT_EQ(plan.num_prefix_groups, 1u);
  size_t reads = 0;
  for (const PrefillRun& run : plan.runs) reads += run.reads.size();
  EXPECT_EQ(reads, 2u + 2u + 1u + 1u);
}

TEST(WholeUnitsTest, NoUnitOfASparseRunIsCut) {
  const Tokens exact = Repeat(100, 1), sparse = Repeat(500, 2);
  const std::vector<RunMember> members = {
      {.prompt = exact, .end = 100, .may_share = true},
      {.prompt = sparse, .end = 500, .may_share = true, .is_sparse = true}};
  const PrefillRuns runs = PlanRuns(members);
  ASSERT_EQ(runs.runs.size(), 2u);
  EXPECT_FALSE(runs.runs[0].is_sparse);
  EXPECT_TRUE(runs.runs[1].is_sparse);
  EXPECT_EQ(runs.WholeUnits(0, 64), 64);
  EXPECT_EQ(runs.WholeUnits(0, 103), 103) << "the sink is in no unit";
  EXPECT_EQ(runs.WholeUnits(0, 300), 100 + 4 + 3 * 64);
  EXPECT_EQ(runs.WholeUnits(296, 64), 64);
  EXPECT_EQ(runs.WholeUnits(296, 1), 64) << "no less than a unit";
  EXPECT_EQ(runs.WholeUnits(100 + 4 + 7 * 64, 5), 48) << "the prompt ends";
  EXPECT_EQ(runs.WholeUnits(0, 1000), 600);
}

TEST_F(PrefillRunsTest, OthersShareNothing) {
  Add(Repeat(3000, 1), 2);
  Add(Repeat(3000, 1), 0);             // has found nothing
  Add(Repeat(3000, 1), 2, false);      // keeps its rows
  Add(Repeat(3000, 1), 2, true, "b");  // another tenant's
  Add(Repeat(3, 1), 0);
  const PrefillRuns plan = Plan();
  Check(plan);
  EXPECT_EQ(plan.num_prefix_groups, 5u);
}

TEST_F(PrefillRunsTest, RandomGroupsAreReadFromEndToEndAndNothingTwice) {
  std::mt19937_64 random(20261122);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 40; ++round) {
    prompts_.clear();
    const int64_t count = draw(1, 6);
    for (int64_t i = 0; i < count; ++i) {
      // A walk that seldom leaves the way of the others.
      Tokens tokens;
      const int64_t length = draw(1, 5000);
      int32_t token = static_cast<int32_t>(draw(0, 1));
      for (int64_t at = 0; at < length; ++at) {
        if (at % 500 == 499 && draw(0, 5) == 0) ++token;
        tokens.push_back(token);
      }
      const auto named = std::ssize(NamePrefix(tokens, kDenseBelow, "model", "").names);
      Add(tokens, static_cast<size_t>(draw(0, named)));
    }
    const PrefillRuns plan = Plan();
    Check(plan);
    // Within a prefix_group no two runs compute the same tokens behind the same beginning.
    std::set<std::pair<size_t, Tokens>> seen;
    for (const PrefillRun& run : plan.runs) {
      const Tokens& prompt = prompts_[run.members.front()].tokens;
      const auto end = prompt.begin() + run.first_position + 1;
      EXPECT_TRUE(seen.insert({run.prefix_group, Tokens(prompt.begin(), end)}).second) << round;
    }
  }
}

// Heads of which nothing but the sink is computed are one where the same is read behind it.
TEST_F(PrefillRunsTest, HeadsThatReadTheSameAreOneRun) {
  const Tokens text = Repeat(2200, 1);
  Add(text, 2);
  Add(text, 2);
  Add(text, 2, true, "another salt");
  std::vector<SequenceKv> sequences(3);
  std::vector<RunMember> members;
  for (size_t i = 0; i < 3; ++i) {
    sequences[i].prompt_tokens = 4 + 2048;
    sequences[i].given_tokens = 100;
    sequences[i].cached = prompts_[i].runs;
    sequences[i].num_cached_segments = 1;
    ASSERT_TRUE(sequences[i].reads_all());
    members.push_back(RunMemberOf(sequences[i], text, {.end = 4 + 2048}, false));
  }
  const PrefillRuns plan = PlanRuns(members);
  ASSERT_EQ(plan.runs.size(), 2u);
  EXPECT_EQ(plan.runs[0].num_rows, 4);
  EXPECT_THAT(plan.runs[0].ends_with_it, ElementsAre(0, 1));
  EXPECT_THAT(plan.runs[0].reads, IsEmpty());
  EXPECT_THAT(plan.runs[1].ends_with_it, ElementsAre(2));
  sequences[1].given_tokens = 0;  // computes what is behind its sink
  EXPECT_FALSE(sequences[1].reads_all());
  members[1] = RunMemberOf(sequences[1], text, {.end = 2200}, false);
  EXPECT_EQ(PlanRuns(members).num_prefix_groups, 3u);
}

TEST(CommonTokensTest, CountsFromTheBeginning) {
  EXPECT_EQ(CommonTokens(Tokens{1, 2, 3}, Tokens{1, 2, 4}), 2);
  EXPECT_EQ(CommonTokens(Tokens{1, 2}, Tokens{1, 2, 4}), 2);
  EXPECT_EQ(CommonTokens(Tokens{}, Tokens{1}), 0);
}

}  // namespace
}  // namespace retroinfer
