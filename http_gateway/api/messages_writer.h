// The answers of /v1/messages.
#pragma once

#include <memory>

#include "http_gateway/api/answer_reader.h"
#include "http_gateway/api/answer_writer.h"

namespace retroinfer::gateway {

struct MessagesOptions {
  AnswerHead head;
  bool streams = false;
  AnswerReaderOptions reader;
};

// Writes Anthropic's events, from message_start to message_stop, or one message. Thoughts are
// blocks of the type "thinking" with a signature that says that there is none.
std::unique_ptr<AnswerWriter> MakeMessagesWriter(MessagesOptions options);

}  // namespace retroinfer::gateway
