// Working memory of the CUDA backend's clustering of a segment. Free of CUDA, so that memory can be
// planned where there is none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer::cuda {

inline constexpr int kRowsPerBlock = 256;  // of keys, in the kernels that centre them

// Bytes of each part of the scratch, for all of `heads` KV heads; they lie one after the other.
struct ClusterScratchSizes {
  size_t keys;       // [heads, n, d] centred keys, in KV dtype
  size_t centroids;  // [heads, m, d] normalised, in KV dtype
  size_t partial;    // [heads, n / kRowsPerBlock, d] f32: sums of keys
  size_t tokens;     // [heads, n] uint16: MemberOrder
  size_t first;      // [heads, m] uint32: the same

  constexpr ClusterScratchSizes(size_t heads, size_t d, size_t n, size_t m)
      : keys(Aligned(heads * n * d * sizeof(float))),
        centroids(Aligned(heads * m * d * sizeof(float))),
        partial(Aligned(heads * n / kRowsPerBlock * d * sizeof(float))),
        tokens(Aligned(heads * n * sizeof(uint16_t))),
        first(Aligned(heads * m * sizeof(uint32_t))) {}
  constexpr size_t total() const { return keys + centroids + partial + tokens + first; }

 private:
  static constexpr size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
};

constexpr size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                         int32_t num_tokens, int32_t num_clusters) {
  return ClusterScratchSizes(num_kv_heads, head_dim, static_cast<size_t>(num_tokens),
                             static_cast<size_t>(num_clusters))
      .total();
}

}  // namespace retroinfer::cuda
