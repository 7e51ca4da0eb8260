#include "gpu_worker/server/conversation_prompt.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

// The number of messages before the last answer, without the one at the end, which may be an answer
// that is to be continued.
size_t MessagesOfTurnBefore(std::span<const ChatMessage> conversation) {
  for (size_t end = conversation.size(); end > 1; --end) {
    if (conversation[end - 2].role == "assistant") return end - 2;
  }
  return 0;
}

// Of whole characters.
size_t CommonBytes(std::string_view a, std::string_view b) {
  size_t common =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto is_within_character = [b](size_t at) {
    return at < b.size() && (static_cast<unsigned char>(b[at]) & 0xc0) == 0x80;
  };
  while (common > 0 && is_within_character(common)) --common;
  return common;
}

// A turn before that the template refuses by itself counts as none: the request is good without it.
int64_t EarlierTokens(const ChatTemplate& chat_template, std::span<const ChatMessage> conversation,
                      ChatOptions options, const jinja::Text& text, size_t num_tokens) {
  const size_t before = MessagesOfTurnBefore(conversation);
  if (before == 0) return 0;
  options.continue_final_message = false;
  options.add_generation_prompt = true;
  const absl::StatusOr<jinja::Text> earlier =
      chat_template.Render(conversation.first(before), options);
  if (!earlier.ok()) return 0;
  const size_t common = CommonBytes(earlier->bytes(), text.bytes());
  const auto rest = chat_template.EncodeText(text.Part(common, text.size()));
  if (!rest.ok()) return 0;
  return static_cast<int64_t>(num_tokens - std::min(num_tokens, rest->size()));
}

std::vector<ChatMessage> ToConversation(const v1::Messages& messages) {
  std::vector<ChatMessage> conversation;
  for (const v1::Message& message : messages.messages()) {
    conversation.push_back(
        {.role = message.role(),
         .content = message.content(),
         .content_is_none = !message.has_content() && !message.tool_calls().empty(),
         .name = message.name(),
         .tool_calls = message.tool_calls(),
         .tool_call_id = message.tool_call_id(),
         .reasoning_content = message.reasoning_content()});
  }
  return conversation;
}

// Renders `conversation`. Some templates search texts in content and cannot do with none: they get
// the empty text, in `conversation`, too.
absl::StatusOr<jinja::Text> RenderConversation(const ChatTemplate& chat_template,
                                               const ChatOptions& options,
                                               std::vector<ChatMessage>* conversation) {
  absl::StatusOr<jinja::Text> text = chat_template.Render(*conversation, options);
  if (text.ok()) return text;
  bool had_none = false;
  for (ChatMessage& message : *conversation) {
    had_none = had_none || std::exchange(message.content_is_none, false);
  }
  return had_none ? chat_template.Render(*conversation, options) : text;
}

}  // namespace

size_t ConversationBytes(const v1::Messages& messages) {
  size_t bytes = messages.tools().size() + messages.template_arguments().size();
  for (const v1::Message& message : messages.messages()) {
    bytes += message.role().size() + message.content().size() + message.name().size() +
             message.tool_calls().size() + message.tool_call_id().size() +
             message.reasoning_content().size();
  }
  return bytes;
}

absl::StatusOr<ConversationPrompt> EncodeConversation(const ChatTemplate& chat_template,
                                                      const v1::Messages& messages) {
  std::vector<ChatMessage> conversation = ToConversation(messages);
  ChatOptions options = {.continue_final_message = messages.continue_final_message(),
                         .tools = messages.tools(),
                         .arguments = messages.template_arguments(),
                         .now = absl::Now()};  // one for both turns
  if (messages.has_enable_thinking()) options.enable_thinking = messages.enable_thinking();
  if (messages.has_add_generation_prompt()) {
    options.add_generation_prompt = messages.add_generation_prompt();
  }
  const absl::StatusOr<jinja::Text> rendered =
      RenderConversation(chat_template, options, &conversation);
  if (absl::IsFailedPrecondition(rendered.status())) {
    return common::WithReason(rendered.status(), "CHAT_TEMPLATE",
                              {{"chat_template", chat_template.source()}});
  }
  ASSIGN_OR_RETURN(const jinja::Text text, rendered);
  ConversationPrompt prompt;
  ASSIGN_OR_RETURN(prompt.tokens, chat_template.EncodeText(text));
  prompt.earlier_tokens =
      EarlierTokens(chat_template, conversation, options, text, prompt.tokens.size());
  return prompt;
}

}  // namespace retroinfer
