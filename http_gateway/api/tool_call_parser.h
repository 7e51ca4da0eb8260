// Finds the calls of functions in what a model writes.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "http_gateway/api/answer_piece.h"

namespace retroinfer::gateway {

// How a model writes a call; learnt from its chat template (http_gateway/worker/model_watch.h).
enum class ToolForm {
  kNone,    // not known: no calls are found
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3
  kLlama,   // {"name": ..., "parameters": {...}} as the whole answer: Llama 3.1
  kMistral,
};

// Text that may be a call is held back until it is one, or is not; nothing is lost: what looks like
// a call but is none, or of a function that nobody has offered, comes out as text.
//
// Threads: one at a time.
class ToolCallParser {
 public:
  ToolCallParser(ToolForm form, std::set<std::string> names)
      : form_(names.empty() ? ToolForm::kNone : form), names_(std::move(names)) {}

  bool finds_none() const { return form_ == ToolForm::kNone; }  // all text comes out as it is
  void Append(std::string_view text, std::vector<AnswerPiece>* pieces);
  // What was held back: the text has ended.
  void Finish(std::vector<AnswerPiece>* pieces);

  // The text with which a model of this form begins a call, of `function` unless that is empty.
  static std::string Opening(ToolForm form, const std::string& function);

 private:
  using Pieces = std::vector<AnswerPiece>;
  void AddText(std::string_view text, Pieces* pieces);
  bool AddCall(std::string_view json, Pieces* pieces);
  bool StepHermes(bool ended, Pieces* pieces);
  bool StepLlama(bool ended, Pieces* pieces);
  // The end of the JSON object that begins at `begin`; 0 if it is not there yet. Each byte is
  // looked at once.
  size_t FindObjectEnd(size_t begin);
  // Takes `bytes` off the front of what is held.
  void Drop(size_t bytes);

  const ToolForm form_;
  const std::set<std::string> names_;
  std::string held_;
  bool inside_ = false;   // kHermes: behind an opening tag
  bool is_text_ = false;  // kLlama: the rest is no call
  bool has_calls_ = false;

  // Of the search in held_.
  size_t scanned_ = 0;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace retroinfer::gateway
