// Drafts of what a request generates next, and how often they have been right.
//
// A draft from the texts is made before each step, whether or not the step will have rows for it:
// the tokens that are drawn say at no cost how good it was. So a request whose answer begins to
// repeat something is noticed although nothing was fed on trial. A draft model makes drafts only
// for steps that have rows for them (model_drafting.h).
//
// Threads: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu_worker/engine/draft_index.h"
#include "gpu_worker/engine/draft_source.h"
#include "gpu_worker/engine/model_drafting.h"

namespace retroinfer {

class Drafting {
 public:
  // As DraftIndex. Takes no memory before the first call of Index().
  explicit Drafting(std::span<const int32_t> prompt, std::span<const int32_t> prediction = {})
      : index_(prompt, prediction) {}

  // DraftIndex::Index().
  int64_t Index(int64_t most) { return index_.Index(most); }
  // Makes the draft of up to `most` tokens of what follows the text, if everything is indexed and
  // tokens have come since the last draft. The draft model's is over.
  void Draft(int64_t most);
  // A token was drawn.
  void Append(int32_t token);

  std::span<const int32_t> draft() const { return draft_; }
  // The chance that a token of the draft is right if those before it are: how it was with matches
  // of about this length, of late.
  double chance() const { return chances_[match_class_]; }

  // There is a draft model: ModelDrafting(of_all).
  void AddModel(DraftModelRecord& of_all) { model_.emplace(of_all); }
  ModelDrafting* model() { return model_.has_value() ? &*model_ : nullptr; }
  // The draft that the next step tries: the model's, if it has made one.
  std::span<const int32_t> tried() const { return is_by_model() ? model_->draft() : draft_; }
  DraftSource source() const { return is_by_model() ? DraftSource::kModel : source_; }

  // Of DraftIndex: the prompt, and what was generated.
  std::span<const int32_t> prompt() const { return index_.prompt(); }
  std::span<const int32_t> answer() const { return index_.answer(); }

 private:
  static constexpr size_t kClasses = 3;

  bool is_by_model() const { return model_.has_value() && !model_->draft().empty(); }

  DraftIndex index_;
  std::optional<ModelDrafting> model_;
  std::vector<int32_t> draft_;
  DraftSource source_ = DraftSource::kPrompt;  // of the draft
  bool is_new_ = true;                         // tokens have come since the draft was made
  size_t match_class_ = 0;                     // of the draft
  size_t num_right_ = 0;                       // leading tokens of the draft that were drawn
  bool is_wrong_ = true;  // another token was drawn than the next one of the draft
  // By class. What few tokens repeat seldom goes on as it did.
  std::array<double, kClasses> chances_ = {0.4, 0.6, 0.8};
};

}  // namespace retroinfer
