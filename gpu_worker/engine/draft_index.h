// Where the newest tokens of a text came before: what followed there is a guess at what follows
// now. Answers repeat their prompts and themselves: code that is edited, passages that are quoted,
// names.
//
// A client may know what the answer will be like: a file that is to be edited. Such a prediction
// lies between prompt and answer. The answer is compared with its beginning first; where the two
// part, the prediction is a text like the prompt, in which the answer's own tokens are looked for.
//
// Each occurrence of kLeastMatch tokens leads to the one before it, and a table by their hash to
// the newest one. (The method is known as prompt look-up decoding.)
//
// Threads: the engine's thread.
// Owns:    the answer's tokens, and the index: 4 bytes a token and at most kMaxTable entries of 4
//          bytes, for the newest kMostIndexed tokens of all three texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "gpu_worker/engine/draft_source.h"

namespace retroinfer {

class DraftIndex {
 public:
  static constexpr int64_t kLeastMatch = 3;
  static constexpr int64_t kMostMatch = 32;
  // Occurrences that are looked at.
  static constexpr int kMostCandidates = 16;
  static constexpr int64_t kMostIndexed = int64_t{1} << 18;
  static constexpr size_t kMaxTable = size_t{1} << 17;

  // Allocates nothing. `prompt` and `prediction` outlive the index.
  explicit DraftIndex(std::span<const int32_t> prompt, std::span<const int32_t> prediction = {});

  // Adds a token to the answer.
  void Append(int32_t token);
  // Indexes up to `most` tokens, the first ones that are not indexed. Returns how many it has.
  // Cost: some nanoseconds a token.
  int64_t Index(int64_t most);
  // Whether all tokens are indexed.
  bool is_whole() const { return num_indexed_ == num_tokens(); }

  struct Match {
    int64_t next = 0;    // position of the token that followed
    int64_t length = 0;  // tokens that are alike, at most kMostMatch
  };
  // The prediction's next token, as long as the answer is the prediction's beginning. Else the
  // earlier occurrence that is alike for longest; the newest of several.
  // Cost: kMostCandidates * kMostMatch comparisons.
  std::optional<Match> Find() const;
  // Appends the `count` tokens that followed the match to `draft`. Where the text ends, the draft
  // goes on with its own tokens: a text that repeats itself is expected to go on so. Where the
  // prediction ends, the draft ends.
  void Read(const Match& match, int64_t count, std::vector<int32_t>& draft) const;

  // Which of the texts the match is in.
  DraftSource SourceOf(const Match& match) const;

  std::span<const int32_t> prompt() const { return prompt_; }
  std::span<const int32_t> answer() const { return answer_; }
  int64_t num_tokens() const {
    return std::ssize(prompt_) + std::ssize(prediction_) + std::ssize(answer_);
  }

 private:
  static constexpr int32_t kNone = -1;

  int32_t At(int64_t position) const {
    auto at = static_cast<size_t>(position);
    if (at < prompt_.size()) return prompt_[at];
    at -= prompt_.size();
    return at < prediction_.size() ? prediction_[at] : answer_[at - prediction_.size()];
  }
  // Place in the table of the kLeastMatch tokens that end with the one at `position`.
  size_t PlaceOf(int64_t position) const;
  // How many tokens up to `a` and up to `b` are alike. Behind a prediction those of the answer
  // count: what comes before the answer is not what the answer goes on from.
  int64_t AlikeUpTo(int64_t a, int64_t b) const;

  const std::span<const int32_t> prompt_;
  const std::span<const int32_t> prediction_;
  const int64_t begin_;  // tokens before are never looked at
  std::vector<int32_t> answer_;
  size_t num_predicted_ = 0;  // leading tokens that answer and prediction have in common
  int64_t num_indexed_;       // tokens [begin_, num_indexed_) are in the index
  // Positions of last tokens of kLeastMatch, less begin_.
  std::vector<int32_t> newest_;    // by PlaceOf()
  std::vector<int32_t> previous_;  // by position less begin_: the one before of the same place
};

}  // namespace retroinfer
