// Working memory of the CUDA backend's attention over the estimation zone. Free of CUDA, so that
// memory can be planned where there is none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer::cuda {

inline constexpr int kClustersPerPart = 128;

constexpr int64_t MaxEstimateParts(int64_t max_estimated) {
  return (max_estimated + kClustersPerPart - 1) / kClustersPerPart;
}

// Of each part and query head: a maximum, a sum, and a head.
constexpr size_t EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                                      int64_t max_estimated) {
  return static_cast<size_t>(max_batch) * static_cast<size_t>(num_query_heads) *
         static_cast<size_t>(MaxEstimateParts(max_estimated)) * static_cast<size_t>(head_dim + 2) *
         sizeof(float);
}

}  // namespace retroinfer::cuda
