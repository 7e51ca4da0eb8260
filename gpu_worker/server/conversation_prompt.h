// The prompt that a conversation makes, and how much of it an earlier turn had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "retroinfer/generation/v1/generation.pb.h"
#include "text/tokenizer/chat_template.h"

namespace retroinfer {

struct ConversationPrompt {
  std::vector<int32_t> tokens;
  // Of `tokens`, from the first one on: those that the prompt of the turn before had, too; that
  // turn is the one that the last answer among the messages came from. 0: there is none, or its
  // prompt was another one from the beginning. Off by a token or two where tokens span the seam.
  int64_t earlier_tokens = 0;
};

// Bytes of all that the template is given.
size_t ConversationBytes(const generation::v1::Messages& messages);

// Cost:    renders the messages of the turn before as well, and tokenizes what is new twice.
// Returns: the errors of ChatTemplate::Encode(); FAILED_PRECONDITION with the reason CHAT_TEMPLATE
//          and, as "chat_template", where the template is from ("none": there is none).
absl::StatusOr<ConversationPrompt> EncodeConversation(const ChatTemplate& chat_template,
                                                      const generation::v1::Messages& messages);

}  // namespace retroinfer
