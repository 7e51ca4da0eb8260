// Invariants:
// * costs_ minimise  sum of (parts . costs - seconds)^2 / (seconds * expected) * age + kHold * sum
//   of (cost / cost before - 1)^2  over costs >= 0, up to what kSweeps sweeps leave. `expected` is
//   what the costs of that time said: an error by a factor counts alike in both directions, so that
//   the costs are those of a median, and a stall moves them no more than any other observation.
// * No cost is 0 for ever: each may come back, because its hold is never narrower than a guess.
#include "gpu_worker/scheduler/cost_model.h"

#include <algorithm>

namespace retroinfer {
namespace {

// A GPU of 2023 with a model of 8 billion parameters, and one of half a billion that drafts. Only
// their relation matters.
constexpr std::array<double, Work::kParts> kGuess = {5e-3, 2e-4, 2e-8, 1e-4,  7e-7, 1e-11,
                                                     1e-9, 2e-5, 5e-9, 3e-12, 1e-3, 2e-5,
                                                     7e-8, 2e-4, 2e-8, 3e-8,  0.3};
constexpr size_t kBesideClustering = Work::kParts - 1;  // a share of other costs, not a time
constexpr double kMemory = 0.99;     // weight of an observation, one observation later
constexpr double kLeastTaken = 0.2;  // share of the expected seconds: fewer count as this
constexpr double kHold = 1e-3;       // weight of the cost before
constexpr double kNarrowest = 1e-2;  // share of the guess
constexpr int kSweeps = 20;

}  // namespace

CostModel::CostModel() : costs_(kGuess) {}

void CostModel::Observe(const Work& work, double seconds) {
  const std::array<double, kParts> parts = work.Parts();
  if (!knows_speed_) {
    const double guessed = Seconds(work);
    if (guessed <= 0) return;
    for (size_t i = 0; i < kBesideClustering; ++i) costs_[i] *= seconds / guessed;
    knows_speed_ = true;
  }
  UpdateMargin(work, seconds);
  const double expected = Seconds(work);
  if (expected <= 0) return;
  const double taken = std::max(seconds, kLeastTaken * expected);
  const double weight = 1 / (taken * expected);
  for (size_t i = 0; i < kParts; ++i) {
    for (size_t j = 0; j < kParts; ++j) {
      products_[i][j] = kMemory * products_[i][j] + parts[i] * parts[j] * weight;
    }
    sums_[i] = kMemory * sums_[i] + parts[i] * taken * weight;
  }
  Solve();
}

void CostModel::Solve() {
  const std::array<double, kParts> before = costs_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kParts; ++i) {
      if (products_[i][i] == 0) continue;  // it has never occurred: its cost stays
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

// Follows a quantile: up where a round took more, down where it did not, by steps whose relation
// is that of how often each is to happen.
void CostModel::UpdateMargin(const Work& work, double seconds) {
  if (work.steps == 0 || work.passes == 0) return;
  constexpr double kUp = 1.08, kDown = 0.9975;  // three rounds of a hundred take more
  const double expected = Seconds(work);
  margin_ = std::clamp(margin_ * (seconds > margin_ * expected ? kUp : kDown), 1.0, kMostMargin);
}

// A plan asks for each request that waits. Four sums, because each addition waits for the one
// before it.
double CostModel::Seconds(const Work& work) const {
  const std::array<double, kParts> parts = work.Parts();
  std::array<double, 4> sums = {};
  for (size_t i = 0; i < kParts; ++i) sums[i % 4] += parts[i] * costs_[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

std::array<double, Work::kParts> CostModel::SecondsByPart(const Work& work) const {
  std::array<double, kParts> seconds = work.Parts();
  for (size_t i = 0; i < kParts; ++i) seconds[i] *= costs_[i];
  return seconds;
}

}  // namespace retroinfer
