// The softmax mass that the index predicts for the clusters outside of the retrieval zone,
// estimated or not, for every query head: the sum over them of s_j exp(x_j), with x_j = scale * q .
// C_j and s_j the number of tokens of the cluster. By Jensen's inequality it is below the true mass
// (estimate.h).
//
// Computed in f32 as all clusters minus the retrieved ones: exact to about 1e-6 of all of them.
// Bound by latency: reads 4 bytes of scores a cluster and query head and an entry a cluster.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct UnseenMassArgs {
  MetaPoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const MetaIndexView> indexes;  // [batch]
  int32_t batch = 0;
  int32_t num_query_heads = 0;
  DeviceSpan<const float> scores;  // [batch, query_heads, max_clusters], from centroid_score.h
  int64_t max_clusters = 0;
  // Empty spans: none is, as where scores say already what clusters hold beside what is retrieved
  // (page_select.h).
  DeviceSpan<const int32_t> retrieved;      // [batch, kv_heads, max_retrieved]
  DeviceSpan<const int32_t> num_retrieved;  // [batch, kv_heads]
  int64_t max_retrieved = 0;
  // max: of the scores of all live clusters, -inf if there are none; sum: 0 then.
  ExpSumView out;
};

}  // namespace retroinfer
