// Drafts of what a request generates next, and how often they have been right.
//
// A draft is made before each step, whether or not the step will have rows for it: the tokens that
// are drawn say at no cost how good it was. So a request whose answer begins to repeat something is
// noticed although nothing was fed on trial.
//
// Threads: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/engine/draft_index.h"

namespace retroinfer {

class Drafting {
 public:
  // As DraftIndex. Takes no memory before the first call of Index().
  explicit Drafting(std::span<const int32_t> prompt, std::span<const int32_t> prediction = {})
      : index_(prompt, prediction) {}

  // DraftIndex::Index().
  int64_t Index(int64_t most) { return index_.Index(most); }
  // Makes the draft of up to `most` tokens of what follows the text, if everything is indexed and
  // tokens have come since the last draft.
  void Draft(int64_t most);
  // A token was drawn.
  void Append(int32_t token);

  std::span<const int32_t> draft() const { return draft_; }
  // The chance that a token of the draft is right if those before it are: how it was with matches
  // of about this length, of late.
  double chance() const { return chances_[match_class_]; }

 private:
  static constexpr size_t kClasses = 3;

  DraftIndex index_;
  std::vector<int32_t> draft_;
  bool is_new_ = true;      // tokens have come since the draft was made
  size_t match_class_ = 0;  // of the draft
  size_t num_right_ = 0;    // leading tokens of the draft that were drawn
  bool is_wrong_ = true;    // another token was drawn than the next one of the draft
  // By class. What few tokens repeat seldom goes on as it did.
  std::array<double, kClasses> chances_ = {0.4, 0.6, 0.8};
};

}  // namespace retroinfer
