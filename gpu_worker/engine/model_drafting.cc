#include "gpu_worker/engine/model_drafting.h"

#include <utility>

namespace retroinfer {
namespace {

// Weights of a token in the averages of a request, and of all.
constexpr double kLearning = 0.1;
constexpr double kLearningOfAll = 0.02;
// What is forgotten with a token that no draft was made for, and with a request that begins.
constexpr double kForgetting = 1.0 / 512;
constexpr double kForgettingOfAll = 1.0 / 64;

void Approach(double goal, double share, double& value) { value += share * (goal - value); }

}  // namespace

ModelDrafting::ModelDrafting(DraftModelRecord& of_all) : of_all_(of_all) {
  Approach(DraftModelRecord::kFirstChance, kForgettingOfAll, of_all_.chance);
  chance_ = of_all_.chance;
}

void ModelDrafting::Take(std::vector<int32_t> draft) {
  draft_ = std::move(draft);
  num_right_ = 0;
  is_over_ = false;
  of_all_.untried = 0;
}

void ModelDrafting::Append(int32_t token) {
  ++of_all_.untried;
  if (draft_.empty()) return Approach(DraftModelRecord::kFirstChance, kForgetting, chance_);
  if (is_over_ || num_right_ == draft_.size()) return;
  const bool is_right = draft_[num_right_] == token;
  Approach(is_right ? 1 : 0, kLearning, chance_);
  Approach(is_right ? 1 : 0, kLearningOfAll, of_all_.chance);
  is_over_ = !is_right;
  if (is_right) ++num_right_;
}

}  // namespace retroinfer
