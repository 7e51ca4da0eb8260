#include "http_gateway/api/response_input.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

absl::StatusOr<v1::Messages> Read(const std::string& members, IgnoredNames* ignored = nullptr) {
  const Json json = Json::parse("{" + members + "}");
  Fields fields = *Fields::Of(json, "", ignored);
  v1::Messages conversation;
  const absl::Status status = ReadResponseInput(fields, &conversation);
  if (!status.ok()) return status;
  return conversation;
}

TEST(ResponseInput, ATextIsAUsersMessage) {
  const auto messages = Read(R"("instructions": "i", "input": "hi")");
  ASSERT_TRUE(messages.ok()) << messages.status();
  ASSERT_EQ(messages->messages_size(), 2);
  EXPECT_EQ(messages->messages(0).role(), "system");
  EXPECT_EQ(messages->messages(1).content(), "hi");
}

TEST(ResponseInput, ItemsBecomeAConversation) {
  const auto messages = Read(R"("input": [
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
      {"role": "user", "content": "u"},
      {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}],
       "content": [{"type": "reasoning_text", "text": "h"}], "encrypted_content": "e"},
      {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
       "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
      {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
      {"type": "function_call_output", "call_id": "c1", "output": "r"},
      {"type": "custom_tool_call_output", "call_id": "c2",
       "output": [{"type": "input_text", "text": "q"}]}])");
  ASSERT_TRUE(messages.ok()) << messages.status();
  ASSERT_EQ(messages->messages_size(), 5);
  EXPECT_EQ(messages->messages(0).role(), "system");
  const v1::Message& turn = messages->messages(2);
  EXPECT_EQ(turn.content(), "a");
  EXPECT_EQ(turn.reasoning_content(), "h");
  const Json calls = Json::parse(turn.tool_calls());
  EXPECT_EQ(calls[0]["id"], "c1");
  EXPECT_EQ(calls[1]["function"]["arguments"]["input"], "x");
  EXPECT_EQ(messages->messages(3).content(), "r");
  EXPECT_EQ(messages->messages(4).tool_call_id(), "c2");
  EXPECT_EQ(messages->messages(4).content(), "q");
}

TEST(ResponseInput, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "input"},
      {R"("input": 5)", "input"},
      {R"("input": [])", "input"},
      {R"("input": ["x"])", "input[0]"},
      {R"("input": [{"content": "x"}])", "input[0].role"},
      {R"("input": [{"role": "tool", "content": "x"}])", "input[0].role"},
      {R"("input": [{"role": "user"}])", "input[0].content"},
      {R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])",
       "input[0].content[0]"},
      {R"("input": [{"type": "item_reference", "id": "x"}])", "input[0].type"},
      {R"("input": [{"type": "function_call", "call_id": "1", "name": "f"}])",
       "input[0].arguments"},
      {R"("input": [{"type": "function_call_output", "output": "x"}])", "input[0].call_id"},
      {R"("input": [{"type": "reasoning", "summary": 1}])", "input[0].summary"},
  };
  for (const auto& [members, param] : cases) {
    IgnoredNames ignored;
    const auto messages = Read(members, &ignored);
    ASSERT_FALSE(messages.ok()) << members;
    EXPECT_EQ(common::ReasonOf(messages.status()).metadata["param"], param) << messages.status();
  }
}

}  // namespace
}  // namespace retroinfer::gateway
