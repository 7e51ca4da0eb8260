#include "text/tokenizer/chat_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja/printing.h"

namespace retroinfer {
namespace {

std::string Show(const std::vector<ChatMessage>& messages, const ChatOptions& options,
                 CallArgumentsForm form, const std::string& name) {
  jinja::Workspace workspace({}, absl::UnixEpoch(), absl::UTCTimeZone());
  TokenizerConfig config;
  config.special_tokens = {{"bos_token", "<s>"}};
  const auto variables = MakeChatVariables(workspace, config, messages, options, form);
  if (!variables.ok()) return std::string(variables.status().message());
  for (const auto& [key, value] : *variables) {
    if (key == name) return jinja::Repr(workspace, value)->bytes();
  }
  return "nothing";
}

TEST(ChatVariablesTest, MessagesHaveWhatIsGiven) {
  ChatMessage message = {.role = "assistant", .content = "c", .name = "n"};
  EXPECT_EQ(Show({message}, {}, CallArgumentsForm::kObject, "messages"),
            "[{'role': 'assistant', 'content': 'c', 'name': 'n'}]");
  message = {.role = "assistant",
             .content = "",
             .name = "",
             .tool_calls = R"(["x"])",
             .tool_call_id = "i",
             .reasoning_content = "r"};
  EXPECT_EQ(Show({message}, {}, CallArgumentsForm::kObject, "messages"),
            "[{'role': 'assistant', 'content': '', 'tool_call_id': 'i', 'reasoning_content': 'r', "
            "'thinking': 'r', 'tool_calls': ['x']}]");
  EXPECT_EQ(Show({{.role = "assistant", .content = "", .content_is_none = true}}, {},
                 CallArgumentsForm::kObject, "messages"),
            "[{'role': 'assistant', 'content': None}]");
  EXPECT_TRUE(HasToolCalls(std::vector<ChatMessage>{{"user", "a"}, message}));
  EXPECT_FALSE(HasToolCalls(std::vector<ChatMessage>{{"user", "a"}}));
}

TEST(ChatVariablesTest, ArgumentsOfCallsHaveTheFormWanted) {
  ChatMessage message = {.role = "assistant"};
  message.tool_calls = R"([{"function": {"name": "f", "arguments": "{\"a\": 1}"}},
                           {"name": "g", "arguments": {"b": 2}}, {"arguments": "no JSON"}])";
  EXPECT_EQ(Show({message}, {}, CallArgumentsForm::kObject, "messages"),
            "[{'role': 'assistant', 'content': '', 'tool_calls': [{'function': {'name': 'f', "
            "'arguments': {'a': 1}}}, {'name': 'g', 'arguments': {'b': 2}}, {'arguments': 'no "
            "JSON'}]}]");
  EXPECT_EQ(Show({message}, {}, CallArgumentsForm::kText, "messages"),
            "[{'role': 'assistant', 'content': '', 'tool_calls': [{'function': {'name': 'f', "
            "'arguments': '{\"a\": 1}'}}, {'name': 'g', 'arguments': '{\"b\": 2}'}, {'arguments': "
            "'no JSON'}]}]");
}

TEST(ChatVariablesTest, Switches) {
  const std::vector<ChatMessage> messages = {{"user", "a"}};
  const auto show = [&](const ChatOptions& options, const std::string& name) {
    return Show(messages, options, CallArgumentsForm::kObject, name);
  };
  EXPECT_EQ(show({}, "add_generation_prompt"), "True");
  EXPECT_EQ(show({.continue_final_message = true}, "add_generation_prompt"), "False");
  EXPECT_EQ(show({}, "enable_thinking"), "nothing");
  EXPECT_EQ(show({.enable_thinking = false}, "enable_thinking"), "False");
  EXPECT_EQ(show({}, "tools"), "None");
  EXPECT_EQ(show({.tools = "[]"}, "tools"), "None");
  EXPECT_EQ(show({}, "bos_token"), "'<s>'");
  EXPECT_EQ(show({.arguments = R"({"documents": [1]})"}, "documents"), "[1]");
  EXPECT_EQ(show({.arguments = R"({"style": "s"})"}, "style"), "'s'");
}

}  // namespace
}  // namespace retroinfer
