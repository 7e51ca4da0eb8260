// Answers with a list of choices: completions and chats.
#pragma once

#include <memory>
#include <vector>

#include "http_gateway/api/answer_writer.h"
#include "http_gateway/api/choice.h"

namespace retroinfer::gateway {

struct ChoicesOptions {
  AnswerHead head;
  bool include_usage = false;    // a last chunk with the counts
  bool return_progress = false;  // chunks while the prompt is read
};

// Writes chunks of a stream ({...,"choices":[...]}, [DONE]), or one object.
std::unique_ptr<AnswerWriter> MakeChoicesWriter(ChoicesOptions options,
                                                std::vector<std::unique_ptr<Choice>> choices);

}  // namespace retroinfer::gateway
