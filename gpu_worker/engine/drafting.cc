#include "gpu_worker/engine/drafting.h"

namespace retroinfer {
namespace {

// Weight of a token in the average.
constexpr double kLearning = 0.1;

size_t ClassOf(int64_t match_length) {
  constexpr int64_t kShort = 4, kLong = 12;
  return match_length <= kShort ? 0 : match_length < kLong ? 1 : 2;
}

}  // namespace

void Drafting::Draft(int64_t most) {
  if (model_.has_value()) model_->Clear();
  if (!is_new_ || !index_.is_whole()) return;
  is_new_ = false;
  draft_.clear();
  num_right_ = 0;
  const std::optional<DraftIndex::Match> match = index_.Find();
  is_wrong_ = !match.has_value();
  if (is_wrong_) return;
  match_class_ = ClassOf(match->length);
  source_ = index_.SourceOf(*match);
  index_.Read(*match, most, draft_);
}

void Drafting::Append(int32_t token) {
  index_.Append(token);
  if (model_.has_value()) model_->Append(token);
  is_new_ = true;
  if (is_wrong_ || num_right_ == draft_.size()) return;
  is_wrong_ = draft_[num_right_] != token;
  double& chance = chances_[match_class_];
  chance += kLearning * ((is_wrong_ ? 0.0 : 1.0) - chance);
  if (!is_wrong_) ++num_right_;
}

}  // namespace retroinfer
