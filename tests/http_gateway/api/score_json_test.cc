#include "http_gateway/api/score_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

v1::ScoredTokens Tokens(int64_t first, const std::vector<float>& logprobs) {
  v1::ScoredTokens tokens;
  tokens.set_first_token(first);
  for (const float logprob : logprobs) {
    v1::ScoredToken& token = *tokens.add_tokens();
    token.set_token_id(static_cast<int32_t>(first) + tokens.tokens_size());
    token.set_logprob(logprob);
    token.set_rank(logprob > -1 ? 1 : 7);
    token.set_is_greedy(logprob > -1);
    token.set_token_bytes("\xc3");
    v1::TokenLogprob& other = *token.add_alternatives();
    other.set_token_id(9);
    other.set_logprob(-0.1F);
    other.set_token_bytes("\"");
  }
  return tokens;
}

Json Parse(const ScoredList& list) { return Json::parse(absl::StrCat("{", list.Members(), "}")); }

TEST(ScoreJson, HasAnEntryForEachTokenInEachList) {
  ScoredList list(true);
  ASSERT_TRUE(list.Append(Tokens(0, {-0.1F})).ok());
  ASSERT_TRUE(list.Append(Tokens(1, {-2.5F, -std::numeric_limits<float>::infinity()})).ok());
  const Json json = Parse(list);
  EXPECT_EQ(json["token_logprobs"].dump(), "[-0.1,-2.5,-9999.0]");
  EXPECT_EQ(json["token_ids"].dump(), "[1,2,3]");
  EXPECT_EQ(json["ranks"].dump(), "[1,7,7]");
  EXPECT_EQ(json["is_greedy"].dump(), "[true,false,false]");
  EXPECT_EQ(json["tokens"][2], "bytes:\\xc3");
  EXPECT_EQ(json["top_logprobs"][0].dump(), R"([{"token_id":9,"token":"\"","logprob":-0.1}])");
  EXPECT_DOUBLE_EQ(json["sum_logprob"].get<double>(), double{-0.1F} - 2.5 - 9999);
  EXPECT_EQ(json["all_greedy"], false);
  EXPECT_GT(list.bytes(), 50U);
}

TEST(ScoreJson, WhatIsNotMeasuredIsNull) {
  ScoredList list(false);
  v1::ScoredTokens first;
  first.add_tokens()->set_token_bytes("a");
  ASSERT_TRUE(list.Append(first).ok());
  const Json json = Parse(list);
  EXPECT_EQ(json["tokens"].dump(), R"(["a"])");
  EXPECT_EQ(json["token_logprobs"].dump(), "[null]");
  EXPECT_EQ(json["is_greedy"].dump(), "[null]");
  EXPECT_FALSE(json.contains("top_logprobs"));
}

TEST(ScoreJson, TokensThatAreMissingAreNotPassedOver) {
  ScoredList list(false);
  ASSERT_TRUE(list.Append(Tokens(0, {-1})).ok());
  EXPECT_FALSE(list.Append(Tokens(2, {-1})).ok());
}

TEST(ScoreJson, UsageCountsWhatWasScored) {
  v1::ScoreFinished finished;
  finished.set_prompt_tokens(10);
  finished.set_cached_tokens(4);
  finished.set_scored_tokens(3);
  finished.set_kv_read_ratio(0.5);
  finished.mutable_unseen_mass()->set_mean(0.25);
  finished.mutable_timings()->mutable_decode()->set_seconds(2);
  const Usage usage = UsageOf(finished);
  EXPECT_EQ(usage.prompt_tokens, 10);
  EXPECT_EQ(usage.cached_tokens, 4);
  EXPECT_EQ(usage.completion_tokens, 3);
  EXPECT_EQ(usage.kv_read_ratio, 0.5);
  ASSERT_TRUE(usage.unseen_mass.has_value());
  EXPECT_EQ(usage.unseen_mass->mean(), 0.25);
  EXPECT_EQ(usage.decode, absl::Seconds(2));
}

}  // namespace
}  // namespace retroinfer::gateway
