// The answers of /v1/responses.
#pragma once

#include <memory>
#include <string>

#include "http_gateway/api/answer_reader.h"
#include "http_gateway/api/answer_writer.h"

namespace retroinfer::gateway {

struct ResponsesOptions {
  AnswerHead head;
  bool streams = false;
  AnswerReaderOptions reader;
  std::string echo;  // members that repeat the request
};

// Writes OpenAI's events, numbered, from response.created to response.completed, .incomplete or
// .failed; or one response. Thoughts are items of the type "reasoning", with their text.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(ResponsesOptions options);

}  // namespace retroinfer::gateway
