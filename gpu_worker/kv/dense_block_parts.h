// Where the bytes of a dense block of memory lie in a block that has the arena's KV heads
// (common/kv/kv_head_range.h): what the host copies between the two.
#pragma once

#include <cstddef>
#include <vector>

#include "common/kv/kv_head_range.h"
#include "gpu_worker/ops/dense_pool.h"

namespace retroinfer {

// Bytes of the block that are together in both.
struct DenseBlockPart {
  size_t in_memory = 0;  // offset
  size_t in_arena = 0;   // offset
  size_t bytes = 0;
};

// Returns one part where memory has all heads, else one for each layer.
inline std::vector<DenseBlockPart> DenseBlockParts(const KvGeometry& memory,
                                                   const KvHeadRange& of_arena) {
  const KvHeadRange heads = of_arena.Of(memory);
  if (heads.is_all()) return {{0, 0, DensePoolView::BlockBytes(memory)}};
  const size_t run_bytes = DensePoolView::RunBytes(memory);
  std::vector<DenseBlockPart> parts;
  for (size_t layer = 0; layer < memory.num_layers; ++layer) {
    parts.push_back({.in_memory = layer * heads.count * run_bytes,
                     .in_arena = (layer * heads.total + heads.first) * run_bytes,
                     .bytes = heads.count * run_bytes});
  }
  return parts;
}

}  // namespace retroinfer
