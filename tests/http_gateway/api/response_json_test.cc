#include "http_gateway/api/response_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

TEST(ResponseJson, UsageCountsAPromptOnce) {
  UsageSum sum;
  v1::Finished finished;
  finished.set_prompt_tokens(100);
  finished.set_cached_tokens(60);
  finished.set_completion_tokens(10);
  finished.set_accepted_prediction_tokens(4);
  finished.set_rejected_prediction_tokens(3);
  finished.set_kv_read_ratio(0.5);
  finished.mutable_unseen_mass()->set_mean(0.4);
  finished.mutable_unseen_mass()->set_largest(0.5);
  finished.mutable_timings()->mutable_prefill()->set_nanos(1'500'000);
  finished.mutable_timings()->mutable_decode()->set_seconds(2);
  sum.Add(finished, true);
  finished.mutable_timings()->mutable_decode()->set_seconds(1);
  finished.set_completion_tokens(30);
  finished.set_kv_read_ratio(0.1);
  finished.mutable_unseen_mass()->set_mean(0.2);
  finished.mutable_unseen_mass()->set_largest(0.3);
  sum.Add(finished, false);
  const Json usage = Json::parse(UsageJson(sum.Total()));
  EXPECT_EQ(usage["prompt_tokens"], 100);
  EXPECT_EQ(usage["completion_tokens"], 40);
  EXPECT_EQ(usage["total_tokens"], 140);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 60);
  EXPECT_EQ(usage["completion_tokens_details"]["accepted_prediction_tokens"], 8);
  EXPECT_EQ(usage["completion_tokens_details"]["rejected_prediction_tokens"], 6);
  EXPECT_NEAR(usage["kv_read_ratio"].get<double>(), 0.2, 1e-6);
  EXPECT_EQ(usage["timings"]["queue_ms"], 0);
  EXPECT_EQ(usage["timings"]["prefill_ms"], 1.5);
  EXPECT_EQ(usage["timings"]["decode_ms"], 2000);  // of the slowest continuation
  EXPECT_NEAR(usage["unseen_mass"]["mean"].get<double>(), 0.25, 1e-6);
  EXPECT_EQ(usage["unseen_mass"]["largest"], 0.5);
  const Json nothing = Json::parse(UsageJson(UsageSum().Total()));
  EXPECT_EQ(nothing["kv_read_ratio"], 0);
  EXPECT_TRUE(nothing["unseen_mass"].is_null());
}

TEST(ResponseJson, HeadsAndReasons) {
  const AnswerHead head = {"id-\"1", "text_completion", 5, "m"};
  EXPECT_EQ(Json::parse(head.Json() + "}")["id"], "id-\"1");
  EXPECT_EQ(FinishReasonText(v1::FINISH_REASON_STOP), "stop");
  EXPECT_EQ(FinishReasonText(v1::FINISH_REASON_LENGTH), "length");
  EXPECT_EQ(FinishReasonText(v1::FINISH_REASON_CANCELLED), "");
  v1::Finished finished;
  EXPECT_EQ(StopReasonJson(finished), "null");
  finished.set_matched_token_id(7);
  EXPECT_EQ(StopReasonJson(finished), "7");
  finished.set_reason(v1::FINISH_REASON_DEADLINE);
  EXPECT_EQ(StopReasonJson(finished), "\"timeout\"");
}

TEST(ResponseJson, TokensThatArePartsOfCharactersAreShownAsBytes) {
  EXPECT_EQ(TokenText("\u20ac"), "\u20ac");
  EXPECT_EQ(TokenText(""), "");
  for (const char* part : {"\xe2\x82", "\x82", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"}) {
    EXPECT_EQ(TokenText(part).rfind("bytes:", 0) == 0 || TokenText(part)[0] == 'a', true);
    EXPECT_NE(TokenText(part).find("\\x"), std::string::npos) << part;
    EXPECT_TRUE(ParseStrictJson("\"x\"").ok());
  }
  EXPECT_EQ(TokenText("\xe2\x82"), "bytes:\\xe2\\x82");
}

TEST(ResponseJson, LogprobsAreJsonWhateverTheNumber) {
  v1::OutputChunk chunk;
  chunk.add_logprobs()->set_logprob(-std::numeric_limits<float>::infinity());
  chunk.add_logprobs()->set_logprob(-1.5F);
  chunk.mutable_logprobs(1)->set_token_bytes("\xe2\"");
  const Json list = Json::parse(absl::StrCat("[", ChatLogprobs(chunk), "]"));
  EXPECT_EQ(list[0]["logprob"], -9999.0);
  EXPECT_EQ(list[1]["logprob"], -1.5);
  for (const float logprob : {-0.0F, -1e-9F, -0.1F, -5.4050384F, -43.240311F, -1e3F}) {
    EXPECT_EQ(std::strtof(LogprobJson(logprob).c_str(), nullptr), logprob);
    EXPECT_TRUE(Json::parse(LogprobJson(logprob)).is_number());
  }
  EXPECT_EQ(LogprobJson(-0.1F), "-0.1");
  EXPECT_EQ(list[1]["bytes"].dump(), "[226,34]");
  CompletionLogprobs lists;
  lists.Append(chunk);
  EXPECT_EQ(Json::parse(lists.Take())["token_logprobs"].size(), 2U);
  EXPECT_TRUE(lists.empty());
}

TEST(ResponseJson, CallsOfChunksHaveAnIndex) {
  EXPECT_EQ(Json::parse(ToolCallJson("id", "add", "{}", 3))["index"], 3);
  EXPECT_FALSE(Json::parse(ToolCallJson("id", "add", "{}", -1)).contains("index"));
}

v1::ScoredTokens Prompt(const std::vector<std::string>& tokens) {
  v1::ScoredTokens scored;
  for (const std::string& bytes : tokens) {
    v1::ScoredToken* const token = scored.add_tokens();
    token->set_token_bytes(bytes);
    if (scored.tokens_size() == 1) continue;
    token->set_logprob(-0.5f);
    v1::TokenLogprob* const other = token->add_alternatives();
    other->set_token_bytes("x");
    other->set_logprob(-0.25f);
  }
  return scored;
}

TEST(ResponseJson, OffsetsOfAPromptAreThoseInItsText) {
  struct {
    std::vector<std::string> tokens;
    std::string text;
    std::string offsets;
  } cases[] = {
      {{"ab", "c", "d"}, "abcd", "[0,2,3]"},
      {{"<s>", "a", "é", "b"}, "aéb", "[0,0,1,2]"},      // not in the text
      {{"<s>", "a", "<s>"}, "<s>a<s>", "[0,3,4]"},       // of ids: in it
      {{"<s>", "a"}, "a<s>", "[0,0]"},                   // what is written is no special token
      {{"a", "\xc3", "\xa9", "b"}, "aéb", "[0,1,2,2]"},  // parts of a character
      {{"a", "é", "b", "c"},
       "ae\xcc\x81"
       "bc",
       "[0,1,3,4]"},  // changed by the tokenizer
      {{"a"}, "", "[0]"},
  };
  for (const auto& one : cases) {
    CompletionLogprobs logprobs;
    logprobs.AppendPrompt(Prompt(one.tokens), one.text);
    const auto json = ParseStrictJson(logprobs.Take());
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ((*json)["text_offset"].dump(), one.offsets) << one.text;
    EXPECT_TRUE((*json)["token_logprobs"][0].is_null());
    EXPECT_TRUE((*json)["top_logprobs"][0].is_null());
    if (one.tokens.size() > 1) {
      EXPECT_EQ((*json)["top_logprobs"][1]["x"], -0.25);
    }
  }
}

}  // namespace
}  // namespace retroinfer::gateway
