// Turns ratios into numbers of clusters, and of pages.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer {

struct SelectionRatios {
  double retrieval = 0.018;   // of all clusters, [0, 1]
  double estimation = 0.232;  // of all clusters, [0, 1]
  int32_t min_retrieved = 64;
  GroupRanking ranking = GroupRanking::kMaxOfSoftmax;
  // Where tokens have codes, of all clusters; else not looked at.
  double candidates = 0.12;
  int32_t min_candidates = 256;
};

// Returns the budget for an index of `num_clusters` places (a multiple of 64): both ratios rounded
// up; at least min_retrieved retrieved and as many estimated as retrieved, unless that ratio is 0;
// capped by what there is, retrieval first.
SelectionBudget BudgetOf(const SelectionRatios& ratios, int32_t num_clusters);

// The same where tokens have codes: `retrieval` is a share of the tokens, in pages that are counted
// as if they were full, and min_retrieved so many times 16 tokens; all pages from a share of 1 on.
// num_retrieved is then the candidates, whose share is at least kCandidatesOfRetrieved times that.
inline constexpr double kCandidatesOfRetrieved = 4;
SelectionBudget CodedBudgetOf(const SelectionRatios& ratios, int32_t num_clusters,
                              uint32_t tokens_per_page);

}  // namespace retroinfer
