// Reads what a JSON string means as its text comes.
#pragma once

#include <cstdint>
#include <string>

namespace retroinfer::gateway {

// Begins behind the opening quote. Control characters, which JSON wants escaped, stand for
// themselves: models write them. Half of a surrogate pair is U+FFFD.
//
// Threads: one at a time.
class JsonStringReader {
 public:
  enum class Verdict { kMore, kEnd, kInvalid };

  // Takes the next byte, the closing quote being the last one. Appends to `out` what is then known
  // of the string's bytes.
  Verdict Take(char c, std::string* out);

 private:
  Verdict TakeHex(char c, std::string* out);
  void EndHalf(std::string* out);

  bool escaped_ = false;
  int hex_left_ = 0;
  uint32_t code_ = 0;
  uint32_t high_half_ = 0;  // of a pair, whose other half may come; 0: none
};

}  // namespace retroinfer::gateway
