#include "http_gateway/api/chat_request.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kUser[] = R"("messages": [{"role": "user", "content": "hi"}])";

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
  EXPECT_EQ(request->tools.choice, ToolChoice::kNone);
}

TEST(ChatRequest, TakesAPredictionAsATextOrInParts) {
  const auto prediction = [](const std::string& content) {
    return Read(std::string(kUser) + R"(, "prediction": {"type": "content", "content": )" +
                content + "}")
        .value()
        .call.prediction();
  };
  EXPECT_EQ(prediction(R"("int main();")"), "int main();");
  EXPECT_EQ(prediction(R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])"),
            "a\nb");
  EXPECT_EQ(Read(std::string(kUser) + R"(, "prediction": null)").value().call.prediction(), "");
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
      {user + R"(, "modalities": ["audio"])", "modalities"},
      {user + R"(, "top_logprobs": 3)", "top_logprobs"},
      {user + R"(, "prediction": "x")", "prediction"},
      {user + R"(, "prediction": {"content": "x"})", "prediction.type"},
      {user + R"(, "prediction": {"type": "content"})", "prediction.content"},
      {user + R"(, "prediction": {"type": "content", "content": 1})", "prediction.content"},
      {user + R"(, "logprobs": 3)", "logprobs"},
      {user + R"(, "max_tokens": 3, "max_completion_tokens": 4)", "max_tokens"},
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
