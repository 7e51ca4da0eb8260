// Where the clusters of the wave index lie, for kernels (layout in gpu_worker/ops/meta_pool.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer::cuda {

struct MetaRuns {
  const std::byte* bytes;
  size_t run_bytes;
  size_t value_sums_offset;
  size_t entries_offset;
  size_t first_codes_offset;
  size_t codes_offset;
  size_t centroid_bytes;   // of one centroid
  size_t value_sum_bytes;  // of one value sum
  uint32_t num_layers;
  uint32_t num_heads;

  explicit MetaRuns(const MetaPoolView& pool)
      : bytes(pool.bytes.device_data()),
        run_bytes(pool.run_bytes),
        value_sums_offset(pool.value_sums_offset),
        entries_offset(pool.entries_offset),
        first_codes_offset(pool.first_codes_offset),
        codes_offset(pool.codes_offset),
        centroid_bytes(pool.geometry.format.centroid.vector_bytes(pool.geometry.head_dim)),
        value_sum_bytes(pool.geometry.format.value_sum.vector_bytes(pool.geometry.head_dim)),
        num_layers(pool.geometry.num_layers),
        num_heads(pool.geometry.num_kv_heads) {}

  __device__ const std::byte* Centroids(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return bytes +
           ((static_cast<size_t>(block) * num_layers + layer) * num_heads + head) * run_bytes;
  }
  __device__ const std::byte* ValueSums(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return Centroids(block, layer, head) + value_sums_offset;
  }
  __device__ const MetaEntry* Entries(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return reinterpret_cast<const MetaEntry*>(Centroids(block, layer, head) + entries_offset);
  }
  __device__ const int32_t* FirstCodes(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return reinterpret_cast<const int32_t*>(Centroids(block, layer, head) + first_codes_offset);
  }
  __device__ const std::byte* Codes(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return Centroids(block, layer, head) + codes_offset;
  }
};

}  // namespace retroinfer::cuda
