#include "gpu_worker/server/conversation_prompt.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "tests/support/byte_tokenizer.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

v1::Messages Conversation(std::initializer_list<std::pair<const char*, std::string>> messages) {
  v1::Messages conversation;
  for (const auto& [role, content] : messages) {
    v1::Message* const message = conversation.add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  return conversation;
}

// Bytes are tokens, and so are the marks: a message has its content, and three more.
constexpr char kTemplate[] =
    "{% for m in messages %}<|im_start|>{{ m.role[0] }}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}";

ConversationPrompt Encode(const v1::Messages& messages, const char* chat_template = kTemplate) {
  const std::unique_ptr<Tokenizer> tokenizer =
      MakeByteTokenizer({.chat_template = std::string(chat_template)});
  const auto prompt = EncodeConversation(ChatTemplate::Create(*tokenizer), messages);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return prompt.ok() ? *prompt : ConversationPrompt();
}

TEST(ConversationPrompt, TheFirstTurnHasNoneBeforeIt) {
  const ConversationPrompt prompt = Encode(Conversation({{"system", "abc"}, {"user", "de"}}));
  EXPECT_EQ(prompt.tokens.size(), 6u + 5u + 2u);
  EXPECT_EQ(prompt.earlier_tokens, 0);
  EXPECT_EQ(Encode(Conversation({{"assistant", "abc"}, {"user", "de"}})).earlier_tokens, 0);
}

TEST(ConversationPrompt, AnotherTurnHasThePromptOfTheOneBefore) {
  const v1::Messages first = Conversation({{"system", "abc"}, {"user", "de"}});
  const v1::Messages second =
      Conversation({{"system", "abc"}, {"user", "de"}, {"assistant", "fghi"}, {"user", "j"}});
  const v1::Messages third = Conversation({{"system", "abc"},
                                           {"user", "de"},
                                           {"assistant", "fghi"},
                                           {"user", "j"},
                                           {"assistant", "k"},
                                           {"tool", "l"},
                                           {"tool", "m"}});
  EXPECT_EQ(Encode(second).earlier_tokens, std::ssize(Encode(first).tokens));
  EXPECT_EQ(Encode(third).earlier_tokens, std::ssize(Encode(second).tokens));
}

TEST(ConversationPrompt, AnAnswerThatIsContinuedIsOfThisTurn) {
  v1::Messages messages = Conversation({{"user", "ab"}, {"assistant", "c"}});
  messages.set_continue_final_message(true);
  EXPECT_EQ(Encode(messages).earlier_tokens, 0);
  messages = Conversation({{"user", "ab"}, {"assistant", "c"}, {"user", "d"}, {"assistant", "e"}});
  messages.set_continue_final_message(true);
  EXPECT_EQ(Encode(messages).earlier_tokens, 5 + 2);
}

TEST(ConversationPrompt, CharactersAreNotDivided) {
  const ConversationPrompt prompt =
      Encode(Conversation({{"user", "a"}, {"assistant", "b"}, {"user", "c"}}),
             "{% if messages|length > 1 %}\u00e9{% else %}\u00e8{% endif %}"
             "{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(prompt.tokens.size(), 5u);
  EXPECT_EQ(prompt.earlier_tokens, 0);  // the two letters have their first byte in common
}

TEST(ConversationPrompt, ATurnThatTheTemplateRefusesCountsAsNone) {
  const ConversationPrompt prompt =
      Encode(Conversation({{"user", "a"}, {"assistant", "b"}, {"user", "c"}}),
             "{% if messages|length < 3 %}{{ raise_exception('too short') }}{% endif %}x");
  EXPECT_EQ(prompt.tokens.size(), 1u);
  EXPECT_EQ(prompt.earlier_tokens, 0);
}

// What the template makes of an assistant's message with a call and no content.
std::string WithoutContent(const char* chat_template, bool is_empty_text) {
  v1::Messages conversation = Conversation({{"user", "u"}});
  v1::Message* const message = conversation.add_messages();
  message->set_role("assistant");
  if (is_empty_text) message->set_content("");
  message->set_tool_calls(R"([{"type": "function", "function": {"name": "f"}}])");
  const ConversationPrompt prompt = Encode(conversation, chat_template);
  return {prompt.tokens.begin(), prompt.tokens.end()};
}

TEST(ConversationPrompt, AbsentContentBesideCallsIsNone) {
  constexpr char kTells[] =
      "{% for m in messages %}{{ 'none' if m.content is none else 'text' }} "
      "{% endfor %}";
  EXPECT_EQ(WithoutContent(kTells, false), "text none ");
  EXPECT_EQ(WithoutContent(kTells, true), "text text ");
  v1::Messages no_calls = Conversation({{"user", "u"}});
  no_calls.add_messages()->set_role("assistant");
  const ConversationPrompt prompt = Encode(no_calls, kTells);
  EXPECT_EQ(std::string(prompt.tokens.begin(), prompt.tokens.end()), "text text ");
}

TEST(ConversationPrompt, ATemplateThatCannotDoWithNoneGetsTheEmptyText) {
  constexpr char kSearches[] = "{% for m in messages %}[{{ m.content.strip() + '.' }}]{% endfor %}";
  EXPECT_EQ(WithoutContent(kSearches, false), "[u.][.]");
}

TEST(ConversationBytes, AreThoseOfEveryField) {
  v1::Messages messages = Conversation({{"user", "abc"}});
  messages.mutable_messages(0)->set_name("nn");
  messages.set_tools("[]");
  messages.set_template_arguments("{}");
  EXPECT_EQ(ConversationBytes(messages), 4u + 3u + 2u + 2u + 2u);
}

}  // namespace
}  // namespace retroinfer
