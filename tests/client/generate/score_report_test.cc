#include "client/generate/score_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace retroinfer::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ScoreReportTest, EveryTokenIsInOneContinuationWithinTheWindow) {
  EXPECT_THAT(PlanWindows({.tokens = 10, .context = 1, .window = 100, .stride = 4}),
              ElementsAre(ScoreWindow{0, 1, 5}, ScoreWindow{0, 5, 9}, ScoreWindow{0, 9, 10}));
  EXPECT_THAT(PlanWindows({.tokens = 10, .context = 3, .window = 5, .stride = 4}),
              ElementsAre(ScoreWindow{2, 3, 7}, ScoreWindow{5, 7, 10}));
  EXPECT_THAT(PlanWindows({.tokens = 2, .context = 1, .window = 2, .stride = 1}),
              ElementsAre(ScoreWindow{0, 1, 2}));
}

// Two tokens of short context, one of a long one.
std::vector<PolicyScores> Scores() {
  return {{"full",
           {{10, std::log(0.5), 7, true},
            {20, std::log(0.25), 3, false},
            {5000, std::log(0.5), 9, true}}},
          {"wave",
           {{10, std::log(0.5), 7, true},
            {20, std::log(0.125), 4, false},
            {5000, std::log(0.25), 9, true}}}};
}
const ScorePlan kPlan = {
    .file = "f.txt", .tokens = 5001, .context = 10, .window = 8192, .stride = 1024};

TEST(ScoreReportTest, TheTableHasPerplexityByPolicyAndContext) {
  const std::string table = ScoreTable(kPlan, Scores());
  EXPECT_THAT(table,
              HasSubstr("f.txt: 5,001 tokens, 3 scored, 1,024 at a time in windows of 8,192"));
  EXPECT_THAT(table, ::testing::ContainsRegex("0 to 1,023 +2 +2.8284 +4.0000 +50.00% +0.3466"));
  EXPECT_THAT(table, ::testing::ContainsRegex("4,096 to 8,191 +1 +2.0000 +4.0000 +100.00%"));
  EXPECT_THAT(table, ::testing::ContainsRegex("all +3 +2.5198 +4.0000 +66.67% +0.4621"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("1,024 to")));
}

TEST(ScoreReportTest, TheJsonHasTheSame) {
  const auto json = nlohmann::json::parse(ScoreJson(kPlan, Scores()));
  EXPECT_EQ(json["tokens"], 5001);
  EXPECT_EQ(json["scored"], 3);
  EXPECT_EQ(json["policies"][1]["policy"], "wave");
  EXPECT_NEAR(json["policies"][1]["perplexity"], 4.0, 1e-9);
  EXPECT_NEAR(json["policies"][0]["greedy_share"], 2.0 / 3, 1e-9);
  EXPECT_EQ(json["policies"][0]["by_context"].size(), 2u);
  EXPECT_EQ(json["policies"][0]["by_context"][1]["context_from"], 4096);
  EXPECT_EQ(json["agreements"][0]["policies"], nlohmann::json({"full", "wave"}));
  EXPECT_NEAR(json["agreements"][0]["same_top1_share"], 2.0 / 3, 1e-9);
  EXPECT_NEAR(json["agreements"][0]["by_context"][0]["mean_logprob_difference"], std::log(2) / 2,
              1e-9);
}

TEST(ScoreReportTest, WhatIsImpossibleIsNoNumber) {
  std::vector<PolicyScores> scores = Scores();
  scores.pop_back();
  scores[0].tokens[0].logprob = -std::numeric_limits<double>::infinity();
  const auto json = nlohmann::json::parse(ScoreJson(kPlan, scores));
  EXPECT_TRUE(json["policies"][0]["perplexity"].is_null());
  EXPECT_TRUE(json["agreements"].empty());
  EXPECT_THAT(ScoreTable(kPlan, scores), HasSubstr("inf"));
}

}  // namespace
}  // namespace retroinfer::client
