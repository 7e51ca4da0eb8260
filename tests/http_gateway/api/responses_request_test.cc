#include "http_gateway/api/responses_request.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kTool[] =
    R"({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}})";

absl::StatusOr<ChatRequest> Read(const std::string& members, IgnoredNames* ignored = nullptr) {
  return ReadResponsesRequest(Json::parse(R"({"input": "hi")" + members + "}"), ignored);
}

TEST(ResponsesRequest, ReadsWhatCodexSends) {
  IgnoredNames ignored;
  const auto request =
      Read(absl::StrCat(R"(, "model": "m", "instructions": "i", "tools": [)", kTool,
                        R"(, {"type": "web_search"}], "tool_choice": "auto",
      "parallel_tool_calls": true, "reasoning": {"effort": "medium", "summary": "auto"},
      "store": false, "stream": true, "include": ["reasoning.encrypted_content"],
      "prompt_cache_key": "k", "text": {"verbosity": "low"}, "max_output_tokens": 9,
      "temperature": 0.5, "metadata": {"a": "b"})"),
           &ignored);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->form, ChatForm::kResponses);
  EXPECT_EQ(request->options.model, "m");
  EXPECT_TRUE(request->options.stream);
  EXPECT_EQ(request->call.sampling().max_tokens(), 9);
  EXPECT_EQ(request->call.reuse(), v1::KV_REUSE_GENERATED);
  EXPECT_EQ(request->tools.choice, ToolChoice::kAuto);
  EXPECT_EQ(request->tools.Names(), std::set<std::string>{"f"});
  const v1::Messages& messages = request->call.messages();
  EXPECT_EQ(messages.messages_size(), 2);
  EXPECT_EQ(Json::parse(messages.tools()), Json::parse(R"([{"type": "function", "function":
                {"name": "f", "description": "d", "parameters": {"type": "object"}}}])"));
  EXPECT_EQ(messages.template_arguments(), R"({"reasoning_effort":"medium"})");
  EXPECT_EQ(ignored.ToString(), "tools[](web_search), text.verbosity");
  const Json echo = Json::parse("{" + request->echo + "}");
  EXPECT_EQ(echo["instructions"], "i");
  EXPECT_EQ(echo["metadata"]["a"], "b");
  EXPECT_EQ(echo["tools"].size(), 2U);
  EXPECT_EQ(echo["reasoning"]["effort"], "medium");
}

TEST(ResponsesRequest, RepeatsNoMoreThanAnAnswerHasRoomFor) {
  const std::string text(300 << 10, 'x');
  const auto request = Read(absl::StrCat(R"(, "instructions": ")", text, "\""));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(Json::parse("{" + request->echo + "}")["instructions"].is_null());
  const auto named = Read(absl::StrCat(R"(, "user": ")", text, "\""));
  ASSERT_TRUE(named.ok());
  EXPECT_LT(named->echo.size(), 1000U);
  EXPECT_EQ(Json::parse("{" + named->echo + "}")["tool_choice"], "auto");
}

TEST(ResponsesRequest, RefusesByName) {
  const std::pair<std::string, const char*> cases[] = {
      {R"(, "previous_response_id": "resp_1")", "previous_response_id"},
      {R"(, "conversation": "c")", "conversation"},
      {R"(, "background": true)", "background"},
      {R"(, "prompt": {"id": "p"})", "prompt"},
      {R"(, "n": 2)", "n"},
      {R"(, "tools": {})", "tools"},
      {R"(, "tools": [{"name": "f"}])", "tools[0].type"},
      {R"(, "tools": [{"type": "function", "name": "a b"}])", "tools[0].name"},
      {absl::StrCat(R"(, "tools": [)", kTool,
                    R"(], "tool_choice": {"type": "function", "name": "g"})"),
       "tool_choice"},
      {R"(, "tool_choice": "required")", "tool_choice"},
      {R"(, "max_output_tokens": 0)", "max_output_tokens"},
      {R"(, "text": 5)", "text"},
      {R"(, "text": {"format": "json"})", "text.format"},
      {R"(, "reasoning": {"effort": "much"})", "reasoning.effort"},
  };
  for (const auto& [members, param] : cases) {
    IgnoredNames ignored;
    const auto request = Read(members, &ignored);
    ASSERT_FALSE(request.ok()) << members;
    EXPECT_EQ(common::ReasonOf(request.status()).metadata["param"], param) << request.status();
  }
}

TEST(ResponsesRequest, RefusesHintsWhereNothingMayBeIgnored) {
  EXPECT_TRUE(Read(R"(, "store": false, "truncation": "disabled", "top_logprobs": 0)").ok());
  for (const char* const members :
       {R"(, "tools": [{"type": "web_search"}])", R"(, "truncation": "auto")",
        R"(, "max_tool_calls": 3)", R"(, "text": {"verbosity": "low"})"}) {
    EXPECT_FALSE(Read(members).ok()) << members;
  }
}

}  // namespace
}  // namespace retroinfer::gateway
