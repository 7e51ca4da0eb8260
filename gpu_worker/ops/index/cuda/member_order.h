// Tokens in cluster order: what clustering and the writing of a segment both walk through.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"

namespace retroinfer::cuda {

inline constexpr int32_t kMaxOrderedTokens = 8192;
inline constexpr int32_t kMaxOrderedClusters = 512;

struct MemberOrder {
  uint16_t* tokens;  // [heads, n]: cluster by cluster, in each the tokens in their own order
  uint32_t* first;   // [heads, m]: where a cluster begins in `tokens`
};

// Enqueues a stable counting sort of the tokens of every head by cluster. `sizes`, unless null,
// takes the clusters' sizes, [heads, m]. `early`: the kernel enqueued last may still run when this
// one starts (see dependent_launch.cuh).
//
// REQUIRES: num_tokens is a multiple of 1024 and at most kMaxOrderedTokens; num_clusters is at most
//           kMaxOrderedClusters; `assignment` is [heads, n], each below num_clusters.
absl::Status OrderMembers(CudaStream& stream, const int32_t* assignment, uint32_t num_heads,
                          int32_t num_tokens, int32_t num_clusters, const MemberOrder& order,
                          int32_t* sizes, bool early = false);

}  // namespace retroinfer::cuda
