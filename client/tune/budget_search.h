// Finds the cheapest retrieval ratio whose tokens stay near enough to those of full attention.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/generate/score_report.h"
#include "common/retrieval/retrieval_file.h"

namespace retroinfer::client {

// What is to be kept; one of the two is set.
struct TuneTarget {
  std::optional<double> change;      // mean absolute change of a token's log-probability
  std::optional<double> perplexity;  // relative to full attention's, less one
};

// The same tokens under two policies, of one window of a text.
struct WindowScores {
  std::vector<TokenScore> full, wave;
};

// Means over the windows' tokens. The standard errors are those of windows, or where there is one
// window of its runs of kRunTokens tokens: neighbouring tokens err alike.
// REQUIRES: windows, and as many tokens of each under both policies, at least one.
common::MeasuredRatio Summarize(int64_t context, double ratio,
                                std::span<const WindowScores> windows);
constexpr int64_t kRunTokens = 32;

// Whether the mean and one standard error are within the target.
bool MeetsTarget(const common::MeasuredRatio& measured, const TuneTarget& target);

// The ratios that are tried at a length, ascending, 1 the last. The least number of clusters that a
// server retrieves makes all smaller ones the same there: only the largest of these is in it.
std::vector<double> RatioLadder(int64_t context, int32_t min_retrieved_clusters);

// Measures a ratio.
using MeasureRatio = std::function<absl::StatusOr<common::MeasuredRatio>(double ratio)>;

struct FoundBudget {
  common::RetrievalFile::Budget budget;
  std::vector<common::MeasuredRatio> measured;  // ascending by ratio
};

// Begins at the ladder's rung nearest to `standard`, goes up or down by doubling numbers of rungs
// until one that meets the target and one that does not are known, and bisects between these. Takes
// for granted that a larger ratio changes less. If no rung meets the target the last one is chosen.
//
// Returns: what `measure` returns.
// Cost:    about 2 log2 of the rungs between `standard` and the result.
// REQUIRES: ladder is not empty.
absl::StatusOr<FoundBudget> FindBudget(std::span<const double> ladder, double standard,
                                       const TuneTarget& target, const MeasureRatio& measure);

}  // namespace retroinfer::client
