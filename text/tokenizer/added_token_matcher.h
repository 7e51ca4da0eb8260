// Finds added tokens in a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "text/tokenizer/special_runs.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// A run of a text that is an added token, or one without any.
struct TextSegment {
  static constexpr int32_t kText = -1;

  std::string_view text;
  int32_t token_id = kText;
};

// Searches as Hugging Face's AddedVocabulary does: from left to right, the longest token that
// begins at the first possible place.
//
// Threads: immutable after construction.
class AddedTokenMatcher {
 public:
  // REQUIRES: each content is not empty and valid UTF-8; contents differ.
  explicit AddedTokenMatcher(std::vector<AddedTokenSpec> tokens);

  // Cuts `text` into segments, none of them empty, and appends them to `out`. Special tokens count
  // only where `special` allows all of their bytes; elsewhere their text is text like any other.
  //
  // REQUIRES: `text` is valid UTF-8; special.size() == text.size().
  // Cost:     O(n x length of the longest token) at worst; one table look-up a byte in most texts.
  void Split(std::string_view text, const SpecialRuns& special,
             std::vector<TextSegment>& out) const;
  // The same with one answer for the whole text.
  void Split(std::string_view text, bool parse_special, std::vector<TextSegment>& out) const {
    Split(text, SpecialRuns(text.size(), parse_special), out);
  }

 private:
  static constexpr int32_t kNone = -1;

  // A trie of the contents' bytes. Node 0 is the root.
  struct Node {
    int32_t token_index = kNone;  // of the token that ends here
  };

  // The longest token that `text` begins with: its index, or kNone.
  int32_t LongestAt(std::string_view text) const;

  std::vector<AddedTokenSpec> tokens_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<uint64_t, int32_t> children_;  // (node << 8 | byte) -> node
  std::vector<bool> is_first_byte_;                  // [256]
};

}  // namespace retroinfer
