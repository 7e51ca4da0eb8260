// Follows the text of one JSON value as it comes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace retroinfer::gateway {

// Says of each byte whether it goes on with a JSON value (RFC 8259). Nothing is kept of the value
// but where its text is; keys that are there twice are not noticed.
//
// Models write line ends into strings, where JSON wants them escaped: a control character within a
// string counts as its escape, and that is what is handed on.
//
// Threads: one at a time.
class JsonScanner {
 public:
  static constexpr int kDepthMax = 64;  // as of kBodyJson

  enum class Verdict {
    kMore,     // the value goes on
    kEnd,      // the byte is the value's last one; numbers have none that is known to be the last
    kInvalid,  // no value goes on so; the scanner is as it was
  };

  // Takes the next byte. Appends what is to be handed on of it to `out`.
  Verdict Take(char c, std::string* out);

  // Whether the value could end here: behind kEnd, or within a number.
  bool CanEnd() const;
  // Whether nothing but white space has come.
  bool IsEmpty() const { return state_ == State::kValue && depth_ == 0; }

 private:
  enum class State {
    kValue,      // a value must come
    kFirstItem,  // behind [
    kFirstKey,   // behind {
    kKey,        // behind a comma in an object
    kColon,      // behind a key
    kBehind,     // behind a value of an array or object
    kString,     // within a string
    kEscape,     // behind its backslash
    kHex,        // within \uXXXX
    kMinus,      // parts of a number, named by what came last
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kLiteral,  // within true, false or null
    kEnd,
  };

  Verdict Step(char c);
  Verdict StepValue(char c);
  Verdict StepString(char c);
  // `is_number`: false where `c` is behind the number.
  Verdict StepNumber(char c, bool* is_number);
  Verdict StepBehind(char c);
  Verdict Push(bool is_object);
  Verdict Pop();
  Verdict EndValue();
  bool in_object() const { return (objects_ >> (depth_ - 1) & 1) != 0; }

  State state_ = State::kValue;
  int depth_ = 0;
  uint64_t objects_ = 0;  // bit i: level i is an object, not an array
  bool is_key_ = false;   // the string
  int hex_left_ = 0;
  std::string_view literal_;  // what is still to come of it
};

}  // namespace retroinfer::gateway
