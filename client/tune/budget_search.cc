// Invariants of the search:
// * Rungs up to `fails` do not meet the target, rungs from `meets` on do, or are taken to; those
//   between are open. -1 and the number of rungs stand for none.
// * Each rung is measured once.
#include "client/tune/budget_search.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

// Each about 1.4 times the one before: what a step reads grows with the ratio, so a finer ladder
// would save less than figures of other texts differ by.
constexpr double kLadder[] = {0.0045, 0.0064, 0.009, 0.0127, 0.018, 0.025, 0.035, 0.05, 0.07,
                              0.1,    0.14,   0.2,   0.28,   0.4,   0.56,  0.8,   1};
constexpr double kTokensPerCluster = 16;

struct Sample {
  double change = 0;      // mean over its tokens
  double difference = 0;  // of log-probabilities: full less wave, mean
};

Sample SampleOf(const WindowScores& window, size_t begin, size_t end) {
  Sample sample;
  for (size_t i = begin; i < end; ++i) {
    const double difference = window.full[i].logprob - window.wave[i].logprob;
    sample.change += std::abs(difference);
    sample.difference += difference;
  }
  const auto count = static_cast<double>(end - begin);
  return {sample.change / count, sample.difference / count};
}

std::vector<Sample> SamplesOf(std::span<const WindowScores> windows) {
  std::vector<Sample> samples;
  if (windows.size() > 1) {
    for (const WindowScores& one : windows) samples.push_back(SampleOf(one, 0, one.full.size()));
    return samples;
  }
  const size_t count = windows[0].full.size();
  for (size_t begin = 0; begin < count; begin += kRunTokens) {
    const size_t end = std::min(count, begin + kRunTokens);
    samples.push_back(SampleOf(windows[0], begin, end));
  }
  return samples;
}

double StandardError(const std::vector<Sample>& samples, double Sample::*value) {
  const auto count = static_cast<double>(samples.size());
  if (samples.size() < 2) return 0;
  double sum = 0, squares = 0;
  for (const Sample& sample : samples) sum += sample.*value;
  for (const Sample& sample : samples) {
    squares += (sample.*value - sum / count) * (sample.*value - sum / count);
  }
  return std::sqrt(squares / (count - 1) / count);
}

}  // namespace

common::MeasuredRatio Summarize(int64_t context, double ratio,
                                std::span<const WindowScores> windows) {
  common::MeasuredRatio out{.context = context, .ratio = ratio, .windows = std::ssize(windows)};
  double change = 0, difference = 0, same = 0;
  for (const WindowScores& window : windows) {
    const auto count = static_cast<double>(window.full.size());
    const Sample all = SampleOf(window, 0, window.full.size());
    change += all.change * count;
    difference += all.difference * count;
    out.tokens += std::ssize(window.full);
    for (size_t i = 0; i < window.full.size(); ++i) {
      same += window.full[i].greedy == window.wave[i].greedy ? 1 : 0;
    }
  }
  const auto tokens = static_cast<double>(out.tokens);
  const std::vector<Sample> samples = SamplesOf(windows);
  out.change = change / tokens;
  out.change_error = StandardError(samples, &Sample::change);
  out.perplexity = std::exp(difference / tokens) - 1;
  // That of the mean difference, on the scale of the ratio.
  out.perplexity_error =
      std::exp(difference / tokens) * StandardError(samples, &Sample::difference);
  out.agreement = same / tokens;
  return out;
}

bool MeetsTarget(const common::MeasuredRatio& measured, const TuneTarget& target) {
  if (target.change.has_value()) return measured.change + measured.change_error <= *target.change;
  return measured.perplexity + measured.perplexity_error <= target.perplexity.value_or(0);
}

std::vector<double> RatioLadder(int64_t context, int32_t min_retrieved_clusters) {
  const double clusters = static_cast<double>(context) / kTokensPerCluster;
  const auto above = std::find_if(std::begin(kLadder), std::end(kLadder) - 1, [&](double ratio) {
    return ratio * clusters > min_retrieved_clusters;
  });
  return {above == std::begin(kLadder) ? above : above - 1, std::end(kLadder)};
}

absl::StatusOr<FoundBudget> FindBudget(std::span<const double> ladder, double standard,
                                       const TuneTarget& target, const MeasureRatio& measure) {
  const auto rungs = std::ssize(ladder);
  std::map<int64_t, common::MeasuredRatio> measured;
  int64_t fails = -1, meets = rungs;
  const auto distance = [&](int64_t i) {
    return std::abs(std::log(ladder[static_cast<size_t>(i)] / standard));
  };
  int64_t next = 0;
  for (int64_t i = 1; i < rungs; ++i) next = distance(i) < distance(next) ? i : next;
  for (int64_t step = 1; meets - fails > 1; step *= 2) {
    ASSIGN_OR_RETURN(measured[next], measure(ladder[static_cast<size_t>(next)]));
    (MeetsTarget(measured[next], target) ? meets : fails) = next;
    if (meets == rungs) {
      next = std::min(fails + step, rungs - 1);
    } else if (fails == -1) {
      next = std::max<int64_t>(meets - step, 0);
    } else {
      next = fails + (meets - fails) / 2;
    }
  }
  FoundBudget found;
  found.budget = {.chosen = measured.at(std::min(meets, rungs - 1)), .meets_target = meets < rungs};
  for (const auto& [rung, one] : measured) found.measured.push_back(one);
  return found;
}

}  // namespace retroinfer::client
