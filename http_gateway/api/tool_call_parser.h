// Finds the calls of functions in what a model writes.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http_gateway/api/answer_piece.h"
#include "http_gateway/api/call_arguments.h"
#include "http_gateway/api/callable_functions.h"
#include "http_gateway/api/json_call.h"
#include "http_gateway/api/tool_form.h"
#include "http_gateway/api/xml_call.h"

namespace retroinfer::gateway {

// Beside calls of the model's form it takes for calls, until one of that form has come: JSON that
// an answer begins with, and JSON between ``` fences, where that names a function that was offered
// and its arguments. Within <tool_call> both JSON and XML are read. Where a grammar has forced
// calls into the model's form, that one alone is read.
//
// Text that may be a call is held back until its function and the beginning of its arguments are
// known; from then on arguments are given out as they come. What looks like a call but is none, or
// is of a function that nobody has offered, comes out as text. Arguments that break after they have
// begun stay as they are, no valid JSON, and what follows is text: nothing is lost, and no call is
// made up.
//
// Threads: one at a time.
class ToolCallParser {
 public:
  // `is_forced`: by a grammar.
  ToolCallParser(ToolForm form, CallableFunctions functions, bool is_forced = false)
      : form_(functions.empty() ? ToolForm::kNone : form),
        functions_(std::move(functions)),
        reads_others_(!is_forced) {}
  ToolCallParser(const ToolCallParser&) = delete;
  ToolCallParser& operator=(const ToolCallParser&) = delete;

  void Append(std::string_view text, std::vector<AnswerPiece>* pieces);
  // What was held back: the text has ended.
  void Finish(std::vector<AnswerPiece>* pieces);

 private:
  using Pieces = std::vector<AnswerPiece>;
  using Tags = std::initializer_list<std::string_view>;

  enum class Place {
    kText,
    kFence,  // behind ```: what language
    kSeek,   // where calls may be, between them
    kJson,   // within a call
    kXml,
    kName,       // Mistral: of a function
    kId,         // Mistral: behind [CALL_ID]
    kArguments,  // Mistral: of the function that was named
    kPassing,    // within <tool_call>, behind what is no call
  };
  // What has opened the place where calls may be.
  enum class Opener { kToolCall, kFunction, kMistral, kPython, kFence, kBare };

  void Take(char c, Pieces* pieces);
  void TakeText(char c, Pieces* pieces);
  void TakePlain(char c, Pieces* pieces);
  void TakeFence(char c, Pieces* pieces);
  void TakeSeek(char c, Pieces* pieces);
  void TakeTagOfSeek(char c, Pieces* pieces);
  void TakeJson(char c, Pieces* pieces);
  void TakeXml(char c, Pieces* pieces);
  void TakeName(char c, Pieces* pieces);
  void TakeId(char c, Pieces* pieces);
  void TakeArguments(char c, Pieces* pieces);
  void TakePassing(char c, Pieces* pieces);

  // Adds `c` to the tag that may be coming. Returns the tag that is complete now, "" where it still
  // may come, and nothing where none does; tag_ then ends with `c`.
  std::optional<std::string_view> MatchTag(char c, Tags tags);
  void Open(std::string_view tag, Opener opener);
  void OpenXml();
  // Leaves the place where calls may be, and goes on behind it with `c`.
  void Leave(char c, Pieces* pieces);
  void Close();
  // A call has begun: what was held back for it is not text.
  void Found();

  const ToolForm form_;
  const CallableFunctions functions_;
  bool reads_others_;  // other forms than the model's own
  Place place_ = Place::kText;
  Opener opener_ = Opener::kBare;
  std::string space_;       // kText: white space that may belong to a tag behind it
  std::string tag_;         // beginning of one
  bool at_start_ = true;    // no text has come
  bool has_calls_ = false;  // in the answer

  // Where calls may be.
  std::string raw_;     // text that was taken since the last call
  bool found_ = false;  // a call has begun
  bool tried_ = false;  // something that might have been one
  enum class List { kNone, kOpen, kClosed } list_ = List::kNone;
  std::optional<JsonCall> json_;
  std::optional<XmlCall> xml_;
  std::string name_;  // Mistral
  CallArguments arguments_;
  bool arguments_begun_ = false;
};

}  // namespace retroinfer::gateway
