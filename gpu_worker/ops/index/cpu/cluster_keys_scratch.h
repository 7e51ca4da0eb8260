// Working memory of the CPU backend's clustering of a segment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer::cpu {

inline constexpr int64_t kKeysPerBlock =
    256;  // products of so many keys at once stay in the L2 cache

// Bytes of each part of the scratch of one KV head, which lie one after the other.
struct ClusterScratchSizes {
  size_t keys;       // [n, d] converted or centred keys, in the type that is multiplied
  size_t packed;     // [m, d] centroids as the matrix product wants them
  size_t centroids;  // [m, d] f32, normalised
  size_t sums;       // [m, d] f32
  size_t block;      // [kKeysPerBlock, d] f32
  size_t mean;       // [d] f32, of the keys

  constexpr ClusterScratchSizes(uint32_t head_dim, int32_t num_tokens, int32_t num_clusters)
      : keys(Floats(num_tokens, head_dim)),
        packed(Floats(num_clusters, head_dim)),
        centroids(packed),
        sums(packed),
        block(Floats(kKeysPerBlock, head_dim)),
        mean(Floats(1, head_dim)) {}
  constexpr size_t total() const { return keys + packed + centroids + sums + block + mean; }

 private:
  static constexpr size_t Floats(int64_t rows, uint32_t head_dim) {
    constexpr size_t kAlignment = 64;
    const size_t bytes = static_cast<size_t>(rows) * head_dim * sizeof(float);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

constexpr size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                         int32_t num_tokens, int32_t num_clusters) {
  return num_kv_heads * ClusterScratchSizes(head_dim, num_tokens, num_clusters).total();
}

}  // namespace retroinfer::cpu
