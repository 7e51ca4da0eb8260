// What one decode step of one layer attends exactly beside the dense zone: page addresses for every
// sequence of a batch and KV head. Reused by all layers.
//
// Threads: one.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/ops/block_cache/page_lookup.h"

namespace retroinfer {

class ExecutionBuffer {
 public:
  // Pages that hold any choice of clusters of one KV head of a sequence with `max_clusters`
  // clusters of 16 tokens on average: each cluster may leave its last page part-filled, or share
  // its first one.
  static int64_t MaxPages(const KvGeometry& geometry, int64_t max_clusters);

  static absl::StatusOr<ExecutionBuffer> Create(Device& device, const KvGeometry& geometry,
                                                int32_t max_batch, int64_t max_clusters);
  static MemoryNeed MemoryOf(const KvGeometry& geometry, int32_t max_batch, int64_t max_clusters);

  int64_t max_pages() const { return max_pages_; }
  // View for a batch: [batch, kv_heads, max_pages].
  DeviceSpan<PageRef> pages(int32_t batch) const;

 private:
  int64_t max_pages_ = 0;
  size_t num_kv_heads_ = 0;
  DeviceBuffer pages_;
};

}  // namespace retroinfer
