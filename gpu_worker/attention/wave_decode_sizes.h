// How long the lists of a decode step of policy wave can be.
#pragma once

#include <cstdint>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/wave_buffer/execution_buffer.h"

namespace retroinfer {

inline int64_t MaxClusters(int64_t max_tokens) {
  return max_tokens / kDecodeSegmentTokens * kClustersPerMetaBlock;
}

inline bool HasCodes(const KvGeometry& geometry) { return geometry.format.token_code_bits != 0; }

// A row of pages of any of so many clusters.
inline int64_t PageRow(const KvGeometry& geometry, int64_t max_clusters) {
  constexpr int64_t kMultiple = 64;
  const int64_t pages = ExecutionBuffer::MaxPages(geometry, max_clusters);
  return (pages + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace retroinfer
