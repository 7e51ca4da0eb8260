// Reads a call that a model writes as a JSON object.
#pragma once

#include <string>
#include <vector>

#include "http_gateway/api/answer_piece.h"
#include "http_gateway/api/call_arguments.h"
#include "http_gateway/api/callable_functions.h"
#include "http_gateway/json/json_scanner.h"
#include "http_gateway/json/json_string_reader.h"

namespace retroinfer::gateway {

// {"name": ..., "arguments": {...}}, in any order, with "parameters" as another word, and perhaps
// within {"type": "function", "function": ...}. Nothing is given out before it is known to be a
// call of a function that was offered; from then on the arguments are given out as they come.
//
// Threads: one at a time.
class JsonCall {
 public:
  enum class Verdict {
    kMore,
    kEnd,   // the byte is the object's last one
    kNone,  // the byte is not part of a call: no more is to be taken
  };

  // `is_bare`: no tag says that a call comes, so that the object must have arguments, and no
  // members before them that calls do not have.
  //
  // REQUIRES: `functions` outlives this.
  JsonCall(const CallableFunctions& functions, bool is_bare)
      : functions_(&functions), is_bare_(is_bare) {}

  // Takes the next byte, `{` being the first one.
  Verdict Take(char c, std::vector<AnswerPiece>* pieces);
  // Ends a call that has begun: nothing more comes.
  void Finish(std::vector<AnswerPiece>* pieces);

  // Whether its function has been given out.
  bool begun() const { return begun_; }

 private:
  enum class State {
    kOpen,
    kFirstKey,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInName,
    kArguments,
    kOther,  // a value that is of no interest
    kBehind,
    kEnd,
  };
  using Pieces = std::vector<AnswerPiece>;

  Verdict TakeKey(char c);
  Verdict BeginValue(char c, Pieces* pieces);
  Verdict TakeName(char c, Pieces* pieces);
  Verdict TakeArguments(char c, Pieces* pieces);
  Verdict TakeOther(char c, Pieces* pieces);
  Verdict TakeBehind(char c, Pieces* pieces);
  Verdict Go(State state);
  // Begins the call once function and arguments are known.
  void BeginIfKnown(Pieces* pieces);

  const CallableFunctions* const functions_;
  const bool is_bare_;
  State state_ = State::kOpen;
  int depth_ = 0;
  JsonStringReader string_;
  std::string key_;
  JsonScanner other_;

  std::string name_;
  bool has_name_ = false;
  CallArguments arguments_;
  bool has_arguments_ = false;
  bool arguments_ended_ = false;
  std::string held_arguments_;  // until the function is known
  bool begun_ = false;
  bool ended_ = false;  // kCallEnd was given
};

}  // namespace retroinfer::gateway
