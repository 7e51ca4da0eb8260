#include "gpu_worker/executor/round_log.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

constexpr std::array<const char*, Work::kParts> kNames = {"steps",
                                                          "rows of steps",
                                                          "tokens of their context",
                                                          "passes",
                                                          "rows of passes",
                                                          "depth",
                                                          "tokens from the cache",
                                                          "rows measured",
                                                          "reach",
                                                          "sparse depth",
                                                          "steps of the draft model",
                                                          "rows of these",
                                                          "rows that it reads",
                                                          "rows of tails",
                                                          "tokens of tails' context",
                                                          "tokens of cold context",
                                                          "seconds beside the background"};

}  // namespace

std::string DescribeRound(const CostModel& costs, const Work& work, double seconds) {
  std::string line = absl::StrFormat("a round took %.1f ms, expected %.1f:", 1e3 * seconds,
                                     1e3 * costs.Seconds(work));
  const auto parts = work.Parts();
  const auto expected = costs.SecondsByPart(work);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == 0) continue;
    absl::StrAppendFormat(&line, " %.4g %s %.1f ms;", parts[i], kNames[i], 1e3 * expected[i]);
  }
  line.pop_back();
  return line;
}

std::string RoundLog::Add(const CostModel& costs, const Work& work, double seconds,
                          absl::Time now) {
  const double expected = costs.Seconds(work);
  const double late = seconds - expected;
  if (work.steps > 0 && late > worst_late_ && late > kLeastSeconds &&
      seconds > kLeastTimes * expected) {
    worst_late_ = late;
    worst_ = DescribeRound(costs, work, seconds);
  }
  if (worst_.empty() || now - told_ < kInterval) return "";
  told_ = now;
  worst_late_ = 0;
  std::string line = std::exchange(worst_, {});
  spdlog::debug("{}", line);
  return line;
}

}  // namespace retroinfer
