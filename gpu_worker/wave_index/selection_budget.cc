#include "gpu_worker/wave_index/selection_budget.h"

#include <algorithm>
#include <cmath>

#include "common/kv/kv_geometry.h"

namespace retroinfer {
namespace {

int32_t ShareOf(double ratio, int32_t num_clusters) {
  return static_cast<int32_t>(std::ceil(std::clamp(ratio, 0.0, 1.0) * num_clusters));
}

// At least as many as are retrieved, of what is left.
int32_t EstimatedOf(const SelectionRatios& ratios, int32_t num_clusters, int32_t num_retrieved) {
  if (ratios.estimation <= 0) return 0;
  return std::min(num_clusters - num_retrieved,
                  std::max(ShareOf(ratios.estimation, num_clusters), num_retrieved));
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
  budget.num_estimated = EstimatedOf(ratios, num_clusters, budget.num_retrieved);
  return budget;
}

SelectionBudget CodedBudgetOf(const SelectionRatios& ratios, int32_t num_clusters,
                              uint32_t tokens_per_page) {
  SelectionBudget budget{.num_clusters = num_clusters,
                         .num_retrieved = 0,
                         .num_estimated = 0,
                         .ranking = ratios.ranking};
  if (ratios.retrieval > 0 && num_clusters > 0) {
    const double candidates =
        std::max(ratios.candidates, kCandidatesOfRetrieved * ratios.retrieval);
    budget.num_retrieved =
        std::min(num_clusters, std::max(ShareOf(candidates, num_clusters), ratios.min_candidates));
    const double share =
        std::max(ratios.retrieval, static_cast<double>(ratios.min_retrieved) / num_clusters);
    const double tokens = static_cast<double>(num_clusters) * kTokensPerCluster;
    // Each cluster may leave its last page part-filled.
    const double wasted = static_cast<double>(num_clusters) * (tokens_per_page - 1);
    budget.num_pages = static_cast<int32_t>(
        std::ceil((share >= 1 ? tokens + wasted : share * tokens) / tokens_per_page));
  }
  budget.num_estimated = EstimatedOf(ratios, num_clusters, budget.num_retrieved);
  return budget;
}

}  // namespace retroinfer
