// The assignment of k-means on Hopper: to each key the centroid with the largest product, of equal
// ones the lowest.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace retroinfer::cuda {

struct AssignLaunch {
  const __nv_bfloat16* keys = nullptr;       // [num_heads][num_tokens][head_dim]
  int64_t head_stride = 0;                   // of the keys, elements
  const __nv_bfloat16* centroids = nullptr;  // [num_heads][num_clusters][head_dim]
  uint32_t num_heads = 0;
  int32_t num_tokens = 0;         // a multiple of 512
  int32_t num_clusters = 0;       // a multiple of 64, at most 512
  int32_t* assignment = nullptr;  // [num_heads][num_tokens]
};

// Whether this build has the kernel and this process's device can run it: 64 or 128 numbers of a
// key, as all centroids of a head must lie in shared memory.
bool HasHopperAssign(int head_dim);

// `head_dim`: 64 or 128. The keys must have been there before the kernel before the last one of the
// stream began: they are read before the last one ends.
cudaError_t LaunchHopperAssign(const AssignLaunch& launch, uint32_t head_dim, cudaStream_t stream);

}  // namespace retroinfer::cuda
