// The fields of a request that its prompt is made of.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Reads `messages`, `tools`, `chat_template_kwargs`, how much the model shall think, and what else
// makes a prompt; for chats, /score and /tokenize.
//
// Content that is a list of parts becomes one text, a line for each part; content that is null
// stays absent where the message has calls. The role "developer" becomes "system", and "function"
// "tool", which templates know.
//
// Returns: INVALID_ARGUMENT with the parameter; parts that are no text (images, audio) are refused
//          by name, and so are roles that OpenAI does not have.
absl::Status ReadConversation(Fields& fields, generation::v1::Messages* conversation);

// Reads `chat_template_kwargs`.
absl::Status ReadTemplateArguments(Fields& fields, generation::v1::Messages* conversation);

// The text of a list of parts of the types "text", "input_text", "output_text" and "refusal".
// Parts of thoughts are left out.
absl::StatusOr<std::string> TextOfParts(const Json& parts, const std::string& path,
                                        const Fields& owner);

}  // namespace retroinfer::gateway
