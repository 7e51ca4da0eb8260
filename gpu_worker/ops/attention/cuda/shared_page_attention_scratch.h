// Working memory of the CUDA backend's attention to shared pages. Free of CUDA, so that memory can
// be planned where there is none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer::cuda {

// Parts of a list, at most: with 8 KV heads and two tiles of queries of each as many thread blocks
// as a device has room for.
inline constexpr int32_t kMaxSharedParts = 16;

constexpr size_t SharedPageAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                                 int32_t head_dim) {
  const int64_t parts = int64_t{max_batch} * num_query_heads * kMaxSharedParts;
  return static_cast<size_t>(parts * (2 + head_dim)) * sizeof(float);
}

}  // namespace retroinfer::cuda
