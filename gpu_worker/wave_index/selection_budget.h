// Turns ratios into numbers of clusters.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer {

struct SelectionRatios {
  double retrieval = 0.018;   // of all clusters, [0, 1]
  double estimation = 0.232;  // of all clusters, [0, 1]
  int32_t min_retrieved = 64;
  GroupRanking ranking = GroupRanking::kMaxOfSoftmax;
};

// Returns the budget for an index of `num_clusters` places (a multiple of 64): both ratios rounded
// up; at least min_retrieved retrieved and as many estimated as retrieved, unless that ratio is 0;
// capped by what there is, retrieval first.
SelectionBudget BudgetOf(const SelectionRatios& ratios, int32_t num_clusters);

}  // namespace retroinfer
