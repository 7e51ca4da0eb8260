// Attention over the estimation zone through centroids and value sums:
//   sum = sum_j s_j exp(x_j - m), acc = sum_j exp(x_j - m) * value_sum_j, x_j = scale * q . C_j.
// By Jensen's inequality exp(x_j) is at most the mean weight of the members (RetroInfer,
// section 4.2). A cluster with score -inf counts nothing. Bound by memory: reads each value sum of
// the zone once for the whole group.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct EstimateArgs {
  MetaPoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const MetaIndexView> indexes;  // [batch]
  int32_t batch = 0;
  int32_t num_query_heads = 0;
  DeviceSpan<const float> scores;  // [batch, query_heads, max_clusters], from centroid_score.h
  int64_t max_clusters = 0;
  DeviceSpan<const int32_t> estimated;      // [batch, kv_heads, max_estimated]
  DeviceSpan<const int32_t> num_estimated;  // [batch, kv_heads]
  int64_t max_estimated = 0;
  // More clusters of the zone, before those above; empty spans: none. Candidates of page_select,
  // whose scores say what they hold beside the chosen pages.
  DeviceSpan<const int32_t> candidates;      // [batch, kv_heads, max_candidates]
  DeviceSpan<const int32_t> num_candidates;  // [batch, kv_heads]
  int64_t max_candidates = 0;
  AttentionPartialView out;
  DeviceSpan<std::byte> scratch;  // at least EstimateScratchBytes(...) of the backend for
                                  // max_estimated + max_candidates
};

}  // namespace retroinfer
