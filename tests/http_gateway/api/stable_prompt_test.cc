#include "http_gateway/api/stable_prompt.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "http_gateway/api/chat_request.h"
#include "http_gateway/api/completion_request.h"
#include "http_gateway/api/score_request.h"
#include "http_gateway/api/tokenize_request.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;
using Texts = std::initializer_list<std::pair<const char*, const char*>>;

v1::Messages Conversation(Texts texts) {
  v1::Messages conversation;
  for (const auto& [role, content] : texts) {
    v1::Message* const message = conversation.add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  return conversation;
}

std::string AfterDropping(Texts texts) {
  v1::Messages conversation = Conversation(texts);
  DropBillingHeader(&conversation);
  std::string all;
  for (const v1::Message& message : conversation.messages()) {
    all += message.role() + "=" + message.content() + ";";
  }
  return all;
}

TEST(DropBillingHeader, DropsTheFirstLineOfTheFirstSystemMessageAlone) {
  EXPECT_EQ(
      AfterDropping({{"system", "x-anthropic-billing-header: cc_version=2; cch=1f;\nBe kind."},
                     {"user", "hi"}}),
      "system=Be kind.;user=hi;");
  EXPECT_EQ(AfterDropping({{"user", "u"}, {"system", "X-Anthropic-BILLING-Header:1\n\nBe kind."}}),
            "user=u;system=\nBe kind.;");
  EXPECT_EQ(AfterDropping({{"system", "x-anthropic-billing-header: 1"}, {"user", "hi"}}),
            "user=hi;");
  EXPECT_EQ(AfterDropping({{"system", "x-anthropic-billing-header: 1"}}), "system=;");
}

TEST(DropBillingHeader, LeavesEverythingElse) {
  for (const char* const content :
       {"Be kind.\nx-anthropic-billing-header: 1", " x-anthropic-billing-header: 1",
        "x-anthropic-billing-header", "x-anthropic-billing-headers: 1", ""}) {
    EXPECT_EQ(AfterDropping({{"system", content}, {"user", "hi"}}),
              std::string("system=") + content + ";user=hi;");
  }
  EXPECT_EQ(AfterDropping({{"user", "x-anthropic-billing-header: 1"}}),
            "user=x-anthropic-billing-header: 1;");
  EXPECT_EQ(AfterDropping({{"system", "a"}, {"system", "x-anthropic-billing-header: 1"}}),
            "system=a;system=x-anthropic-billing-header: 1;");
}

TEST(WithoutCacheControl, LeavesWhatIsNoMark) {
  const Json list = Json::parse(R"([
      {"type": "function", "cache_control": {"type": "ephemeral"},
       "function": {"name": "f", "cache_control": {"type": "ephemeral"},
                    "parameters": {"properties": {"cache_control": {"type": "string"}}}}},
      1, "cache_control"])");
  EXPECT_EQ(WithoutCacheControl(list), Json::parse(R"([
      {"type": "function",
       "function": {"name": "f", "parameters": {"properties": {"cache_control": {"type": "string"}}}}},
      1, "cache_control"])"));
  EXPECT_EQ(WithoutCacheControl(Json(7)), Json(7));
}

constexpr char kMark[] = R"("cache_control": {"type": "ephemeral", "ttl": "1h"},)";

// Everything that a chat may mark, with the mark or without.
Json Chat(const std::string& mark) {
  return Json::parse("{" + mark + R"("messages": [
      {)" + mark + R"("role": "system", "content": [{)" +
                     mark + R"("type": "text", "text": "s"}]},
      {)" + mark + R"("role": "user", "content": "u"},
      {)" + mark + R"("role": "assistant", "content": null, "tool_calls": [{)" +
                     mark + R"("id": "1", "type": "function", "function": {)" + mark +
                     R"("name": "f", "arguments": "{}"}}]},
      {)" + mark + R"("role": "tool", "tool_call_id": "1", "content": [{)" +
                     mark +
                     R"("type": "text", "text": "t"}]}],
      "tools": [{)" + mark +
                     R"("type": "function", "function": {)" + mark +
                     R"("name": "f", "parameters": {}}}]})");
}

TEST(CacheControl, IsTakenAnywhereAndChangesNothing) {
  const auto marked = ReadChatRequest(Chat(kMark));
  const auto plain = ReadChatRequest(Chat(""));
  ASSERT_TRUE(marked.ok()) << marked.status();
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(marked->call.SerializeAsString(), plain->call.SerializeAsString());
  EXPECT_EQ(marked->call.messages().tools().find("cache_control"), std::string::npos);
  const auto prompt = [](const char* members) {
    return Json::parse(std::string("{") + kMark + members + "}");
  };
  EXPECT_TRUE(ReadCompletionRequest(prompt(R"("prompt": "a")")).ok());
  EXPECT_TRUE(ReadScoreRequest(prompt(R"("prompt": "a", "continuations": ["b"])")).ok());
  EXPECT_TRUE(ReadTokenizeRequest(prompt(R"("prompt": "a")")).ok());
  const char kConversation[] = R"("messages": [{"role": "user", "content": "a"}])";
  EXPECT_TRUE(ReadTokenizeRequest(prompt(kConversation)).ok());
}

}  // namespace
}  // namespace retroinfer::gateway
