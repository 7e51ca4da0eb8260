// Clusters the keys of one segment, layer by layer (RetroInfer, section 4.3: segmented clustering).
//
// Spherical k-means for each head on its own: initial centroids are the keys at a uniform stride,
// L2-normalised; `rounds` times: assign each key to the centroid with the largest inner product,
// then centroid = normalised sum of the members (an empty cluster keeps its centroid); one last
// assignment. With `centre_keys`, the segment's mean key is subtracted before all that: softmax
// does not see a constant shift of the keys, but cosine similarity does. The index is then C = mean
// of the members (never centred, not normalised), value sum, size, and the radius: the largest
// distance of a member to C. Bound by arithmetic: 2 * n * m * d * (rounds + 1) flops for each head.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/layer_kv.h"

namespace retroinfer {

struct ClusterKeysArgs {
  LayerKv kv;
  int64_t first_token = 0;   // of the segment, a row of `kv`
  int32_t num_tokens = 0;    // n, multiple of 1024, at most 8192
  int32_t num_clusters = 0;  // m = n / 16
  int32_t rounds = 10;
  bool centre_keys = false;
  DeviceSpan<int32_t> assignment;  // [kv_heads, n], cluster of each token
  DeviceSpan<int32_t> sizes;       // [kv_heads, m]
  DeviceSpan<float> centroids;     // [kv_heads, m, d]: C; 0 for an empty cluster
  DeviceSpan<float> value_sums;    // [kv_heads, m, d]
  DeviceSpan<float> radii;         // [kv_heads, m]; 0 for an empty cluster
  DeviceSpan<std::byte> scratch;   // at least ClusterKeysScratchBytes(...) of the backend
};

}  // namespace retroinfer
