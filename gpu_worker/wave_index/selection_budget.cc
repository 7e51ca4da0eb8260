#include "gpu_worker/wave_index/selection_budget.h"

#include <algorithm>
#include <cmath>

namespace retroinfer {
namespace {

int32_t ShareOf(double ratio, int32_t num_clusters) {
  return static_cast<int32_t>(std::ceil(std::clamp(ratio, 0.0, 1.0) * num_clusters));
}

}  // namespace

SelectionBudget BudgetOf(const SelectionRatios& ratios, int32_t num_clusters) {
  SelectionBudget budget{.num_clusters = num_clusters,
                         .num_retrieved = 0,
                         .num_estimated = 0,
                         .ranking = ratios.ranking};
  if (ratios.retrieval > 0) {
    budget.num_retrieved = std::min(
        num_clusters, std::max(ShareOf(ratios.retrieval, num_clusters), ratios.min_retrieved));
  }
  if (ratios.estimation > 0) {
    budget.num_estimated =
        std::min(num_clusters - budget.num_retrieved,
                 std::max(ShareOf(ratios.estimation, num_clusters), budget.num_retrieved));
  }
  return budget;
}

}  // namespace retroinfer
