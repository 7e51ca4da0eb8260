#include "http_gateway/api/messages_request.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kTool[] = R"("tools": [{"name": "f", "input_schema": {"type": "object"}}])";

absl::StatusOr<ChatRequest> Read(const std::string& members, IgnoredNames* ignored = nullptr) {
  return ReadMessagesRequest(
      Json::parse(R"({"messages": [{"role": "user", "content": "hi"}])" + members + "}"), ignored);
}

TEST(MessagesRequest, ReadsWhatClaudeCodeSends) {
  IgnoredNames ignored;
  const auto request = Read(R"(, "model": "claude-sonnet-4-5", "max_tokens": 32000, "stream": true,
      "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
      "tools": [{"name": "Bash", "description": "d", "input_schema": {"type": "object"},
                 "cache_control": {"type": "ephemeral"}, "eager_input_streaming": true},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
      "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 31999},
      "temperature": 1, "stop_sequences": ["END"], "top_k": 5,
      "context_management": {"edits": []}, "output_config": {"effort": "high"})",
                            &ignored);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->form, ChatForm::kMessages);
  EXPECT_EQ(request->options.model, "claude-sonnet-4-5");
  EXPECT_TRUE(request->options.stream);
  const v1::GenerateRequest& call = request->call;
  EXPECT_EQ(call.sampling().max_tokens(), 32000);
  EXPECT_EQ(call.sampling().stop(0), "END");
  EXPECT_EQ(call.sampling().top_k(), 5);
  EXPECT_EQ(call.reuse(), v1::KV_REUSE_GENERATED);
  EXPECT_TRUE(call.messages().enable_thinking());
  EXPECT_EQ(call.messages().template_arguments(), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(call.messages().messages(0).content(), "s");
  EXPECT_EQ(Json::parse(call.messages().tools()),
            Json::parse(R"([{"type": "function", "function": {"name": "Bash", "description": "d",
                            "parameters": {"type": "object"}}}])"));
  EXPECT_EQ(request->tools.choice, ToolChoice::kAuto);
  EXPECT_EQ(ignored.ToString(),
            "thinking.budget_tokens, tools[](web_search_20250305), context_management");
}

TEST(MessagesRequest, ThinksOnlyIfAskedTo) {
  const auto thinks = [](const std::string& members) {
    const auto request = Read(members);
    if (!request.ok()) return request.status().ToString();
    const v1::Messages& messages = request->call.messages();
    return std::string(!messages.has_enable_thinking() ? "template"
                       : messages.enable_thinking()    ? "on"
                                                       : "off");
  };
  EXPECT_EQ(thinks(""), "off");
  EXPECT_EQ(thinks(R"(, "thinking": {"type": "disabled"})"), "off");
  EXPECT_EQ(thinks(R"(, "thinking": {"type": "enabled"})"), "on");
  EXPECT_EQ(thinks(R"(, "thinking": {"type": "adaptive"})"), "template");
  EXPECT_EQ(thinks(R"(, "chat_template_kwargs": {"enable_thinking": true})"), "on");
}

TEST(MessagesRequest, ReadsTheChoiceOfTools) {
  const auto choice = [](const std::string& value) {
    return Read(absl::StrCat(", ", kTool, ", \"tool_choice\": ", value));
  };
  EXPECT_EQ(choice(R"({"type": "auto"})")->tools.choice, ToolChoice::kAuto);
  EXPECT_EQ(choice(R"({"type": "any"})")->tools.choice, ToolChoice::kRequired);
  EXPECT_EQ(choice(R"({"type": "none"})")->tools.choice, ToolChoice::kNone);
  const auto named = choice(R"({"type": "tool", "name": "f"})");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->tools.choice, ToolChoice::kFunction);
  EXPECT_EQ(named->tools.function, "f");
  for (const char* const bad : {"\"auto\"", "{}", R"({"type": "tool"})", R"({"type": "most"})",
                                R"({"type": "tool", "name": "g"})"}) {
    EXPECT_FALSE(choice(bad).ok()) << bad;
  }
}

TEST(MessagesRequest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "n": 2)", "n"},
      {R"(, "stop_sequences": "x")", "stop_sequences"},
      {R"(, "stop_sequences": [5])", "stop_sequences"},
      {R"(, "max_tokens": 0)", "max_tokens"},
      {R"(, "tools": 5)", "tools"},
      {R"(, "tools": [{"name": "a b"}])", "tools[0].name"},
      {R"(, "thinking": {"type": "on"})", "thinking.type"},
      {R"(, "output_config": {"effort": "much"})", "output_config.effort"},
      {R"(, "output_config": {"format": "json"})", "output_config.format"},
  };
  for (const auto& [members, param] : cases) {
    IgnoredNames ignored;
    const auto request = Read(members, &ignored);
    ASSERT_FALSE(request.ok()) << members;
    EXPECT_EQ(common::ReasonOf(request.status()).metadata["param"], param) << request.status();
  }
}

}  // namespace
}  // namespace retroinfer::gateway
