// Invariants:
// * costs_ minimise  sum of (parts . costs / seconds - 1)^2 * age + kHold * sum of
//   (cost / cost before - 1)^2  over costs >= 0, up to what kSweeps sweeps leave.
// * No cost is 0 for ever: each may come back, because its hold is never narrower than a guess.
#include "gpu_worker/engine/scheduler/cost_model.h"

#include <algorithm>

namespace retroinfer {
namespace {

// A GPU of 2023 with a model of 8 billion parameters. Only their relation matters.
constexpr std::array<double, Work::kParts> kGuess = {5e-3, 2e-4,  2e-8, 1e-4,
                                                     7e-7, 1e-11, 1e-9, 2e-5};
constexpr double kMemory = 0.99;     // weight of what was seen, one observation later
constexpr double kHold = 1e-3;       // weight of the cost before
constexpr double kNarrowest = 1e-2;  // of the guess
constexpr int kSweeps = 20;

}  // namespace

CostModel::CostModel() : costs_(kGuess) {}

void CostModel::Observe(const Work& work, double seconds) {
  const std::array<double, kParts> parts = work.Parts();
  if (!knows_speed_) {
    const double guessed = Seconds(work);
    if (guessed <= 0) return;
    for (double& cost : costs_) cost *= seconds / guessed;
    knows_speed_ = true;
  }
  for (size_t i = 0; i < kParts; ++i) {
    for (size_t j = 0; j < kParts; ++j) {
      products_[i][j] = kMemory * products_[i][j] + parts[i] * parts[j] / (seconds * seconds);
    }
    sums_[i] = kMemory * sums_[i] + parts[i] / seconds;
  }
  Solve();
}

void CostModel::Solve() {
  const std::array<double, kParts> before = costs_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kParts; ++i) {
      const double width = std::max(before[i], kNarrowest * kGuess[i]);
      const double hold = kHold / (width * width);
      double rest = sums_[i] + hold * before[i];
      for (size_t j = 0; j < kParts; ++j) {
        if (j != i) rest -= products_[i][j] * costs_[j];
      }
      costs_[i] = std::max(0.0, rest / (products_[i][i] + hold));
    }
  }
}

double CostModel::Seconds(const Work& work) const {
  const std::array<double, kParts> parts = work.Parts();
  double seconds = 0;
  for (size_t i = 0; i < kParts; ++i) seconds += costs_[i] * parts[i];
  return seconds;
}

}  // namespace retroinfer
