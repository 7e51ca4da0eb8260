// Turns the tokens of one answer into text as they come.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// What Append() and Flush() return, put together, is what Tokenizer::Decode() returns for all
// tokens, and the special ones that are shown; but for a space at the beginning, which Decode()
// takes for the mark before a text: an answer goes on with one.
//
// Threads: one at a time.
// Owns:    at most 3 bytes of a character that is not complete.
class IncrementalDetokenizer {
 public:
  // `shown`: special tokens that are not skipped.
  //
  // REQUIRES: `tokenizer` outlives this.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                         std::vector<int32_t> shown = {})
      : tokenizer_(&tokenizer), skip_special_(skip_special), shown_(std::move(shown)) {}

  // Returns the characters that are complete with `token`, if any. Bytes that can no longer become
  // a character are U+FFFD. An id that is no token adds nothing.
  std::string Append(int32_t token);

  // Returns U+FFFD for an unfinished character, if there is one. The detokenizer can be used again.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> shown_;
  std::string pending_;
};

}  // namespace retroinfer
