// What a chat template is given.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "text/jinja/program.h"
#include "text/tokenizer/chat_template.h"

namespace retroinfer {

// How the arguments of tool calls reach the template. Most write them as JSON and want the object;
// some add them to text and want a string.
enum class CallArgumentsForm { kObject, kText };

// Stands behind the last message's text when that is to be continued. White space at its end shows
// whether the template trims texts.
inline constexpr std::string_view kContinuationMark = "CONTINUE_FINAL_MESSAGE_TAG ";

// Returns the variables, as transformers names them: messages, tools, documents,
// add_generation_prompt, the special tokens, enable_thinking, and options.arguments.
//
// Returns: INVALID_ARGUMENT with the message's index, for what is malformed.
absl::StatusOr<jinja::Program::Variables> MakeChatVariables(jinja::Workspace& workspace,
                                                            const TokenizerConfig& config,
                                                            std::span<const ChatMessage> messages,
                                                            const ChatOptions& options,
                                                            CallArgumentsForm form);

// Whether a message has tool calls.
bool HasToolCalls(std::span<const ChatMessage> messages);

}  // namespace retroinfer
