// Finds the first of several stop strings in a text that arrives piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace retroinfer {

// Holds back the end of the text as long as it may be the beginning of a stop string, and no
// longer. A match is the one that ends first; of those that end at the same byte, the longest.
//
// Threads: one at a time.
class StopMatcher {
 public:
  // REQUIRES: no string is empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Scans `text`, which follows what was scanned before, and appends to `*out` all of it that can
  // no longer be part of a stop string. With `may_stop` false, stop strings that end in this piece
  // are ordinary text.
  //
  // Returns: the index of the stop string that matched, -1 if none did. After a match `*out` has
  //          the text up to the stop string; the rest of `text` is dropped.
  // REQUIRES: no match so far.
  // Cost:    amortised O(bytes x stop strings) (Knuth-Morris-Pratt); no allocation beyond the
  //          growth of `*out` and of the text held back.
  int Scan(std::string_view text, bool may_stop, std::string* out);

  // Appends what is held back to `*out`: the text has ended.
  void Flush(std::string* out);

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[i]: longest proper border of text[0..i], in bytes
    size_t matched = 0;          // bytes of `text` that the scanned text ends with
  };

  std::vector<Pattern> patterns_;
  std::string held_;
};

}  // namespace retroinfer
