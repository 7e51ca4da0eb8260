// Reads what a model writes: thoughts, text, and calls of functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http_gateway/api/answer_piece.h"
#include "http_gateway/api/callable_functions.h"
#include "http_gateway/api/reasoning_splitter.h"
#include "http_gateway/api/tool_call_parser.h"

namespace retroinfer::gateway {

struct AnswerReaderOptions {
  std::optional<ReasoningSplitter> splitter;  // nothing: there are no thoughts
  ToolForm tool_form = ToolForm::kNone;
  CallableFunctions functions;
  bool is_forced = false;  // a grammar keeps calls to that form
  bool one_call = false;   // what comes behind the first call is left out
};

// The same pieces come of an answer however it was cut, but for where texts are cut.
//
// Threads: one at a time.
class AnswerReader {
 public:
  explicit AnswerReader(const AnswerReaderOptions& options);

  // The next pieces; what may be part of a tag or of a call is held back.
  std::vector<AnswerPiece> Append(std::string_view text);
  // What was held back: the answer has ended.
  std::vector<AnswerPiece> Finish();

  int num_calls() const { return num_calls_; }  // that have begun

 private:
  void Add(const ReasoningSplitter::Parts& parts, std::vector<AnswerPiece>* pieces);
  void Count(std::vector<AnswerPiece>* pieces);

  const bool one_call_;
  std::optional<ReasoningSplitter> splitter_;
  ToolCallParser calls_;
  int num_calls_ = 0;
  bool ended_ = false;  // no more is wanted
};

}  // namespace retroinfer::gateway
