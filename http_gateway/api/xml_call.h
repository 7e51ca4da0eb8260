// Reads a call that a model writes in tags.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "http_gateway/api/answer_piece.h"
#include "http_gateway/api/callable_functions.h"

namespace retroinfer::gateway {

// As Qwen3-Coder writes it, from behind "<function=" to "</function>":
//
//   <function=NAME>
//   <parameter=KEY>
//   VALUE
//   </parameter>
//   </function>
//
// What a value means says CallableFunctions::KindOf(). Strings are given out as they come.
//
// Threads: one at a time.
class XmlCall {
 public:
  static constexpr std::string_view kOpen = "<function=";

  enum class Verdict {
    kMore,
    kEnd,   // the byte is the call's last one
    kNone,  // the byte is not part of a call: no more is to be taken
  };

  // REQUIRES: `functions` outlives this.
  explicit XmlCall(const CallableFunctions& functions) : functions_(&functions) {}

  Verdict Take(char c, std::vector<AnswerPiece>* pieces);
  // Ends a call that has begun: nothing more comes.
  void Finish(std::vector<AnswerPiece>* pieces);

  // Whether its function has been given out.
  bool begun() const { return begun_; }
  // What was taken of a tag that is not complete; text where Take() returned kNone.
  const std::string& partial_tag() const { return tag_; }

 private:
  enum class State { kName, kBetween, kKey, kValue, kEnd };
  using Pieces = std::vector<AnswerPiece>;

  Verdict TakeName(char c, Pieces* pieces);
  Verdict TakeBetween(char c, Pieces* pieces);
  Verdict TakeKey(char c, Pieces* pieces);
  void TakeValue(char c, Pieces* pieces);
  void AddToValue(char c, Pieces* pieces);
  void EndValue(Pieces* pieces);
  void Give(std::string_view arguments, Pieces* pieces);

  const CallableFunctions* const functions_;
  State state_ = State::kName;
  bool begun_ = false;
  bool ended_ = false;  // kCallEnd was given
  std::string name_;
  std::string key_;
  std::set<std::string> keys_;
  ParameterKind kind_ = ParameterKind::kString;
  bool at_start_ = false;  // of a value: one line end belongs to the tag
  std::string value_;      // unless it is a string
  std::string tag_;        // beginning of one
};

}  // namespace retroinfer::gateway
