#include "http_gateway/api/message_blocks.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

absl::StatusOr<v1::Messages> Read(const std::string& members) {
  const Json json = Json::parse("{" + members + "}");
  IgnoredNames ignored;
  Fields fields = *Fields::Of(json, "", &ignored);
  v1::Messages conversation;
  const absl::Status status = ReadMessageBlocks(fields, &conversation);
  if (!status.ok()) return status;
  EXPECT_EQ(ignored.ToString(), "");
  return conversation;
}

TEST(MessageBlocks, BecomeAConversation) {
  const auto messages = Read(R"(
      "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
                 {"type": "text", "text": "t"}],
      "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "h", "signature": "x"},
          {"type": "redacted_thinking", "data": "z"},
          {"type": "text", "text": "a"},
          {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
          {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
        {"role": "user", "content": [
          {"type": "text", "text": "before"},
          {"type": "tool_result", "tool_use_id": "c1",
           "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "q"}]},
          {"type": "tool_result", "tool_use_id": "c2", "is_error": true},
          {"type": "text", "text": "behind"}]}])");
  ASSERT_TRUE(messages.ok()) << messages.status();
  ASSERT_EQ(messages->messages_size(), 6);
  EXPECT_EQ(messages->messages(0).content(), "s\nt");
  const v1::Message& turn = messages->messages(2);
  EXPECT_EQ(turn.role(), "assistant");
  EXPECT_EQ(turn.content(), "a");
  EXPECT_EQ(turn.reasoning_content(), "h");
  EXPECT_EQ(Json::parse(turn.tool_calls())[0]["function"]["arguments"], R"({"x":1})");
  EXPECT_EQ(messages->messages(3).content(), "r\nq");
  EXPECT_EQ(messages->messages(4).content(), "error");
  EXPECT_EQ(messages->messages(4).tool_call_id(), "c2");
  EXPECT_EQ(messages->messages(5).role(), "user");
  EXPECT_EQ(messages->messages(5).content(), "before\nbehind");
  EXPECT_FALSE(messages->continue_final_message());
}

TEST(MessageBlocks, AnAnswerThatTheClientHasBegunIsContinued) {
  const auto messages = Read(
      R"("messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "{"}])");
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_TRUE(messages->continue_final_message());
}

TEST(MessageBlocks, RefuseByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "messages"},
      {R"("messages": [])", "messages"},
      {R"("messages": 5)", "messages"},
      {R"("messages": [{"role": "user", "content": []}])", "messages"},
      {R"("messages": [5])", "messages[0]"},
      {R"("messages": [{"role": "tool", "content": "x"}])", "messages[0].role"},
      {R"("messages": [{"role": "user"}])", "messages[0].content"},
      {R"("messages": [{"role": "user", "content": 5}])", "messages[0].content"},
      {R"("messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}])",
       "messages[0].content[0].type"},
      {R"("messages": [{"role": "user", "content": [{"type": "tool_use"}]}])",
       "messages[0].content[0].type"},
      {R"("messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
          "content": [{"type": "image"}]}]}])",
       "messages[0].content[0].content[0].type"},
      {R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1",
          "name": "f", "input": "x"}]}])",
       "messages[0].content[0].input"},
      {R"("system": 5, "messages": [])", "system"},
  };
  for (const auto& [members, param] : cases) {
    const auto messages = Read(members);
    ASSERT_FALSE(messages.ok()) << members;
    EXPECT_EQ(common::ReasonOf(messages.status()).metadata["param"], param) << messages.status();
  }
}

}  // namespace
}  // namespace retroinfer::gateway
