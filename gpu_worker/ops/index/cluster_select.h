// Ranks the clusters of a sequence for each KV head and splits the best into the retrieval and the
// estimation zone (RetroInfer, section 4; design: "Ranking for a KV head").
#pragma once

#include <cstdint>

#include "gpu_worker/device/device_span.h"

namespace retroinfer {

// How the scores of a group's query heads become one rank. Per head the weights are
// w_g = softmax over all live clusters of the sequence.
enum class GroupRanking : int32_t {
  kSumOfSoftmax = 0,  // sum over the group of w_g: the paper's
  kMaxOfSoftmax =
      1,  // max over the group of w_g: a cluster that matters to one head is not voted down
};

// How one sequence selects.
struct SelectionBudget {
  int32_t num_clusters;   // places to rank, empty clusters included; a multiple of 64
  int32_t num_retrieved;  // r
  int32_t num_estimated;  // e; r + e <= num_clusters
  GroupRanking ranking;
  int32_t num_pages = 0;  // of the retrieved clusters' pages that page_select chooses, where tokens
                          // have codes
};

struct ClusterSelectArgs {
  DeviceSpan<const float> scores;  // [batch, query_heads, max_clusters]; the ranks of
                                   // centroid_score.h where a radius counts
  int64_t max_clusters = 0;
  int32_t batch = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  DeviceSpan<const SelectionBudget> budgets;  // [batch]
  // Cluster numbers, in no particular order; empty clusters (score -inf) never appear, so fewer
  // than r or e may. Ties are broken arbitrarily but deterministically.
  int64_t max_retrieved = 0;
  int64_t max_estimated = 0;
  DeviceSpan<int32_t> retrieved;      // [batch, kv_heads, max_retrieved]
  DeviceSpan<int32_t> num_retrieved;  // [batch, kv_heads]
  DeviceSpan<int32_t> estimated;      // [batch, kv_heads, max_estimated]
  DeviceSpan<int32_t> num_estimated;  // [batch, kv_heads]
  DeviceSpan<std::byte> scratch;      // at least batch * kv_heads * max_clusters * 8 bytes
};

}  // namespace retroinfer
