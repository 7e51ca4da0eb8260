#include "http_gateway/api/conversation_fields.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

absl::StatusOr<v1::Messages> Read(const std::string& messages, IgnoredNames* ignored = nullptr) {
  const Json json = Json::parse(R"({"messages": )" + messages + "}");
  Fields fields = *Fields::Of(json, "", ignored);
  v1::Messages conversation;
  const absl::Status status = ReadConversation(fields, &conversation);
  if (!status.ok()) return status;
  return conversation;
}

TEST(ConversationFields, TakesTheRolesOfOpenAiAlone) {
  const auto messages = Read(R"([
      {"role": "developer", "content": "d"}, {"role": "system", "content": "s"},
      {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
      {"role": "tool", "content": "t"}, {"role": "function", "name": "f", "content": "r"}])");
  ASSERT_TRUE(messages.ok()) << messages.status();
  std::string roles;
  for (const v1::Message& message : messages->messages()) roles += message.role() + " ";
  EXPECT_EQ(roles, "system system user assistant tool tool ");
  const auto other = Read(R"([{"role": "user", "content": "u"}, {"role": "root", "content": ""}])");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(common::ReasonOf(other.status()).metadata["param"], "messages[1].role");
}

TEST(ConversationFields, ContentThatIsNullStaysAbsentBesideCalls) {
  const auto messages = Read(R"([
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
      {"role": "assistant", "content": null},
      {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}])");
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_FALSE(messages->messages(0).has_content());
  EXPECT_TRUE(messages->messages(1).has_content());
  EXPECT_TRUE(messages->messages(2).has_content());
  EXPECT_EQ(messages->messages(3).tool_calls(),
            R"([{"type":"function","function":{"name":"f","arguments":"{}"}}])");
}

TEST(ConversationFields, TakesPartsOfTextAndThoughtsInEachForm) {
  IgnoredNames ignored;
  const auto messages = Read(R"([
      {"role": "user", "content": [{"type": "input_text", "text": "a", "cache_control": {}},
                                   {"type": "text", "text": ""}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "reasoning": "r", "thinking_blocks": [{}], "reasoning_details": [{}],
       "content": [{"type": "thinking", "thinking": "t"}, {"type": "output_text", "text": "c"},
                   {"type": "refusal", "refusal": "no"}]}])",
                             &ignored);
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_EQ(messages->messages(0).content(), "a\n\nb");
  EXPECT_EQ(messages->messages(1).content(), "c\nno");
  EXPECT_EQ(messages->messages(1).reasoning_content(), "r");
  EXPECT_EQ(ignored.ToString(), "messages[].reasoning_details");
}

TEST(ConversationFields, RefusesWhatIsNoTextByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([{"role": "user", "content": [{"type": "input_image", "image_url": ""}]}])",
       "messages[0].content[0]"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0]"},
      {R"([{"role": "assistant", "audio": {"id": "1"}}])", "messages[0].audio"},
      {R"([{"role": "assistant", "function_call": "f"}])", "messages[0].function_call"},
  };
  for (const auto& [messages, param] : cases) {
    IgnoredNames ignored;
    const auto conversation = Read(messages, &ignored);
    ASSERT_FALSE(conversation.ok()) << messages;
    EXPECT_EQ(common::ReasonOf(conversation.status()).metadata["param"], param);
  }
}

}  // namespace
}  // namespace retroinfer::gateway
