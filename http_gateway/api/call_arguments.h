// Reads the arguments of a call as models write them into JSON.
#pragma once

#include <string>
#include <string_view>

#include "http_gateway/json/json_scanner.h"
#include "http_gateway/json/json_string_reader.h"

namespace retroinfer::gateway {

// Arguments are an object; a string that holds the text of one; or nothing: null, or an empty
// string. What is handed on is the model's own text, byte by byte as it comes, so that no number
// loses a digit; nothing is handed on as {}.
//
// Threads: one at a time.
class CallArguments {
 public:
  enum class Verdict { kMore, kEnd, kInvalid };

  // Takes the next byte of the value. Appends what is to be handed on to `out`.
  Verdict Take(char c, std::string* out);

 private:
  enum class State { kBegin, kObject, kString, kNull, kEnd };

  Verdict TakeOfObject(char c, std::string* out);
  Verdict TakeOfString(char c, std::string* out);
  Verdict End(std::string* out);

  State state_ = State::kBegin;
  JsonScanner object_;
  bool object_ended_ = false;
  JsonStringReader string_;
  std::string_view null_ = "ull";  // what is still to come of null
};

}  // namespace retroinfer::gateway
