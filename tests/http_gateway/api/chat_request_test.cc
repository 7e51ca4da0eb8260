#include "http_gateway/api/chat_request.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kUser[] = R"("messages": [{"role": "user", "content": "hi"}])";
constexpr char kTools[] =
    R"("tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}])";

absl::StatusOr<ChatRequest> Read(const std::string& members) {
  return ReadChatRequest(Json::parse("{" + members + "}"));
}

TEST(ChatRequest, TakesEveryRoleAndPartsOfContent) {
  const auto request = Read(R"("messages": [
      {"role": "developer", "content": "be short"},
      {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null,
       "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "3"}],
      "max_tokens": 5, "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2,
      "chat_template_kwargs": {"enable_thinking": false, "documents": []})");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::Messages& messages = request->call.messages();
  ASSERT_EQ(messages.messages_size(), 4);
  EXPECT_EQ(messages.messages(0).role(), "system");
  EXPECT_EQ(messages.messages(1).content(), "a\nb");
  EXPECT_EQ(messages.messages(1).name(), "ann");
  EXPECT_EQ(messages.messages(2).content(), "");
  EXPECT_EQ(messages.messages(2).reasoning_content(), "r");
  EXPECT_EQ(Json::parse(messages.messages(2).tool_calls())[0]["function"]["name"], "f");
  EXPECT_EQ(messages.messages(3).tool_call_id(), "1");
  EXPECT_TRUE(messages.has_enable_thinking() && !messages.enable_thinking());
  EXPECT_EQ(messages.template_arguments(), R"({"documents":[]})");
  EXPECT_EQ(request->call.sampling().max_tokens(), 5);
  EXPECT_EQ(request->call.sampling().logprobs(), 2);
  EXPECT_EQ(request->tool_choice, ToolChoice::kNone);
}

TEST(ChatRequest, ReadsToolsAndTheirChoice) {
  const auto choice = [](const std::string& value) {
    return Read(std::string(kUser) + "," + kTools + ", \"tool_choice\": " + value);
  };
  const auto automatic = Read(std::string(kUser) + "," + kTools);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(automatic->tool_names, std::set<std::string>{"add"});
  EXPECT_EQ(Json::parse(automatic->call.messages().tools())[0]["function"]["name"], "add");
  const auto none = choice("\"none\"");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->tool_names.empty());
  EXPECT_EQ(none->call.messages().tools(), "");
  const auto required = choice("\"required\"");
  ASSERT_TRUE(required.ok());
  EXPECT_EQ(required->tool_choice, ToolChoice::kRequired);
  EXPECT_FALSE(required->call.messages().enable_thinking());
  const auto named = choice(R"({"type": "function", "function": {"name": "add"}})");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->function, "add");
  for (const char* bad :
       {"\"maybe\"", "5", "{}", R"({"type": "function", "function": {"name": "rm"}})",
        R"({"type": "function", "function": 1})", R"({"type": 1, "function": {}})"}) {
    EXPECT_FALSE(choice(bad).ok()) << bad;
  }
}

TEST(ChatRequest, RefusesByName) {
  const std::string user = kUser;
  const std::pair<std::string, const char*> cases[] = {
      {"", "messages"},
      {R"("messages": [])", "messages"},
      {R"("messages": {})", "messages"},
      {R"("messages": [5])", "messages[0]"},
      {R"("messages": [{"content": "x"}])", "messages[0].role"},
      {R"("messages": [{"role": "user"}])", "messages[0].content"},
      {R"("messages": [{"role": "user", "content": 5}])", "messages[0].content"},
      {R"("messages": [{"role": "user", "content": "x", "image": 1}])", "messages[0].image"},
      {R"("messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[0]"},
      {user + R"(, "response_format": {"type": "json_schema"})", "response_format"},
      {user + R"(, "functions": [{"name": "f"}])", "functions"},
      {user + R"(, "modalities": ["audio"])", "modalities"},
      {user + R"(, "top_logprobs": 3)", "top_logprobs"},
      {user + R"(, "logprobs": 3)", "logprobs"},
      {user + R"(, "max_tokens": 3, "max_completion_tokens": 4)", "max_tokens"},
      {user + R"(, "tools": [{"type": "web_search"}])", "tools[0]"},
      {user + R"(, "tools": [{"type": "function", "function": {"name": "a b"}}])",
       "tools[0].function.name"},
      {user + "," + kTools + R"(, "parallel_tool_calls": false)", "parallel_tool_calls"},
      {user + R"(, "tool_choice": "required")", "tool_choice"},
      {user + R"(, "prompt": "x")", "prompt"},
  };
  for (const auto& [members, param] : cases) {
    const auto request = Read(members);
    ASSERT_FALSE(request.ok()) << members;
    EXPECT_EQ(common::ReasonOf(request.status()).metadata["param"], param) << request.status();
  }
}

TEST(ChatRequest, AsksForNothingInParticularAsClientsDo) {
  EXPECT_TRUE(Read(std::string(kUser) +
                   R"(, "response_format": {"type": "text"}, "modalities": ["text"], "tools": [],
                      "parallel_tool_calls": true, "store": false, "function_call": "none",
                      "service_tier": "auto", "reasoning_effort": null)")
                  .ok());
}

}  // namespace
}  // namespace retroinfer::gateway
