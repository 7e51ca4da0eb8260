#include "http_gateway/api/conversation_builder.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

TEST(ConversationBuilder, ATurnOfTheAssistantIsOneMessage) {
  v1::Messages messages;
  ConversationBuilder builder(&messages);
  builder.AddMessage("system", "s");
  builder.AddMessage("system", "t");
  builder.AddMessage("user", "u");
  builder.AddThoughts("h");
  builder.AddAnswer("a");
  builder.AddAnswer("b");
  builder.AddCall("1", "f", R"({"x":1})");
  builder.AddCall("2", "g", Json::object());
  builder.AddResult("1", "r");
  builder.AddResult("2", "");
  builder.AddCall("3", "f", "{}");
  builder.Finish();
  builder.Finish();
  ASSERT_EQ(messages.messages_size(), 6);
  EXPECT_EQ(messages.messages(0).content(), "s\n\nt");
  EXPECT_EQ(messages.messages(1).role(), "user");
  const v1::Message& turn = messages.messages(2);
  EXPECT_EQ(turn.role(), "assistant");
  EXPECT_EQ(turn.reasoning_content(), "h");
  EXPECT_EQ(turn.content(), "a\nb");
  EXPECT_EQ(turn.tool_calls(),
            R"([{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},)"
            R"({"id":"2","type":"function","function":{"name":"g","arguments":{}}}])");
  EXPECT_EQ(messages.messages(3).role(), "tool");
  EXPECT_EQ(messages.messages(3).tool_call_id(), "1");
  EXPECT_TRUE(messages.messages(4).has_content());
  EXPECT_FALSE(messages.messages(5).has_content());
  EXPECT_EQ(messages.messages(5).reasoning_content(), "");
}

TEST(ConversationBuilder, ThoughtsBeginAnotherTurn) {
  v1::Messages messages;
  ConversationBuilder builder(&messages);
  builder.AddThoughts("h");
  builder.AddAnswer("a");
  builder.AddThoughts("i");
  builder.AddAnswer("b");
  builder.Finish();
  ASSERT_EQ(messages.messages_size(), 2);
  EXPECT_EQ(messages.messages(1).reasoning_content(), "i");
  EXPECT_EQ(messages.messages(1).content(), "b");
}

}  // namespace
}  // namespace retroinfer::gateway
