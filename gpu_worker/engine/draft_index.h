// Where the newest tokens of a text came before: what followed there is a guess at what follows
// now. Answers repeat their prompts and themselves: code that is edited, passages that are quoted,
// names.
//
// Each occurrence of kLeastMatch tokens leads to the one before it, and a table by their hash to
// the newest one. (The method is known as prompt look-up decoding.)
//
// Threads: the engine's thread.
// Owns:    the answer's tokens, and the index: 4 bytes a token and at most kMaxTable entries of 4
//          bytes, for the newest kMostIndexed tokens of the prompt and the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace retroinfer {

class DraftIndex {
 public:
  static constexpr int64_t kLeastMatch = 3;
  static constexpr int64_t kMostMatch = 32;
  // Occurrences that are looked at.
  static constexpr int kMostCandidates = 16;
  static constexpr int64_t kMostIndexed = int64_t{1} << 18;
  static constexpr size_t kMaxTable = size_t{1} << 17;

  // Allocates nothing. `prompt` outlives the index.
  explicit DraftIndex(std::span<const int32_t> prompt);

  // Adds a token to the answer.
  void Append(int32_t token) { answer_.push_back(token); }
  // Indexes up to `most` tokens, the first ones that are not indexed. Returns how many it has.
  // Cost: some nanoseconds a token.
  int64_t Index(int64_t most);
  // Whether all tokens are indexed.
  bool is_whole() const { return num_indexed_ == num_tokens(); }

  struct Match {
    int64_t next = 0;    // position of the token that followed
    int64_t length = 0;  // tokens that are alike, at most kMostMatch
  };
  // The earlier occurrence that is alike for longest; the newest of several.
  // Cost: kMostCandidates * kMostMatch comparisons.
  std::optional<Match> Find() const;
  // Appends the `count` tokens that followed the match to `draft`. Where the text ends, the draft
  // goes on with its own tokens: a text that repeats itself is expected to go on so.
  void Read(const Match& match, int64_t count, std::vector<int32_t>& draft) const;

  int64_t num_tokens() const {
    return static_cast<int64_t>(prompt_.size()) + static_cast<int64_t>(answer_.size());
  }

 private:
  static constexpr int32_t kNone = -1;

  int32_t At(int64_t position) const {
    const auto at = static_cast<size_t>(position);
    return at < prompt_.size() ? prompt_[at] : answer_[at - prompt_.size()];
  }
  // Place in the table of the kLeastMatch tokens that end with the one at `position`.
  size_t PlaceOf(int64_t position) const;
  // How many tokens up to `a` and up to `b` are alike.
  int64_t AlikeUpTo(int64_t a, int64_t b) const;

  const std::span<const int32_t> prompt_;
  const int64_t begin_;  // tokens before are never looked at
  std::vector<int32_t> answer_;
  int64_t num_indexed_;  // tokens [begin_, num_indexed_) are in the index
  // Positions of last tokens of kLeastMatch, less begin_.
  std::vector<int32_t> newest_;    // by PlaceOf()
  std::vector<int32_t> previous_;  // by position less begin_: the one before of the same place
};

}  // namespace retroinfer
