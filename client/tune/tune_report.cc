#include "client/tune/tune_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command/number_format.h"

namespace retroinfer::client {

std::string DescribeTarget(const TuneTarget& target) {
  if (target.change.has_value()) {
    return absl::StrFormat("mean change of a token's log-probability at most %g", *target.change);
  }
  return absl::StrFormat("perplexity at most %g %% above full attention's",
                         100 * target.perplexity.value_or(0));
}

std::string DescribeMeasured(const common::MeasuredRatio& measured) {
  return absl::StrCat(
      WithThousands(measured.context), " tokens, ratio ",
      absl::StrFormat("%.4g: change %.3f +- %.3f, perplexity %+.2f %% +- %.2f %%, same likeliest "
                      "token %.1f %%",
                      measured.ratio, measured.change, measured.change_error,
                      100 * measured.perplexity, 100 * measured.perplexity_error,
                      100 * measured.agreement));
}

std::string TuneTable(const common::RetrievalFile& file, const TuneTarget& target) {
  std::string table =
      absl::StrCat("Target: ", DescribeTarget(target), ", mean and one standard error\n\n");
  absl::StrAppendFormat(&table, "%12s %8s %18s %22s %12s\n", "context", "ratio", "change",
                        "perplexity", "same top-1");
  bool any_missed = false;
  for (const common::RetrievalFile::Budget& budget : file.budgets) {
    const common::MeasuredRatio& chosen = budget.chosen;
    absl::StrAppendFormat(&table, "%12s %7.3g%% %18s %22s %11.1f%%%s\n",
                          WithThousands(chosen.context), 100 * chosen.ratio,
                          absl::StrFormat("%.3f +- %.3f", chosen.change, chosen.change_error),
                          absl::StrFormat("%+.2f%% +- %.2f%%", 100 * chosen.perplexity,
                                          100 * chosen.perplexity_error),
                          100 * chosen.agreement, budget.meets_target ? "" : "  misses the target");
    any_missed |= !budget.meets_target;
  }
  if (any_missed) {
    table +=
        "\nNo ratio meets the target where the table says so: the figures are too uncertain "
        "(--windows, more\n--text), or the target is below what rounding makes. Policy full is "
        "exact.\n";
  }
  return table;
}

}  // namespace retroinfer::client
