#include "gpu_worker/wave_buffer/execution_buffer.h"

#include "common/status/status_macros.h"

namespace retroinfer {

int64_t ExecutionBuffer::MaxPages(const KvGeometry& geometry, int64_t max_clusters) {
  const int64_t per_page = geometry.tokens_per_page();
  // Of packed clusters each may begin within a page that another one has as well.
  const int64_t shared = geometry.format.packs_clusters ? 1 : 0;
  return max_clusters * (int64_t{kTokensPerCluster} + per_page - 1 + shared) / per_page;
}

MemoryNeed ExecutionBuffer::MemoryOf(const KvGeometry& geometry, int32_t max_batch,
                                     int64_t max_clusters) {
  const size_t rows = static_cast<size_t>(max_batch) * geometry.num_kv_heads;
  return {MemoryPurpose::kBlockCache,
          rows * static_cast<size_t>(MaxPages(geometry, max_clusters)) * sizeof(PageRef)};
}

absl::StatusOr<ExecutionBuffer> ExecutionBuffer::Create(Device& device, const KvGeometry& geometry,
                                                        int32_t max_batch, int64_t max_clusters) {
  ExecutionBuffer buffer;
  buffer.max_pages_ = MaxPages(geometry, max_clusters);
  buffer.num_kv_heads_ = geometry.num_kv_heads;
  ASSIGN_OR_RETURN(buffer.pages_,
                   device.Allocate(MemoryOf(geometry, max_batch, max_clusters).total(),
                                   MemoryPurpose::kBlockCache));
  return buffer;
}

DeviceSpan<PageRef> ExecutionBuffer::pages(int32_t batch) const {
  return pages_.as<PageRef>().first(static_cast<size_t>(batch) * num_kv_heads_ *
                                    static_cast<size_t>(max_pages_));
}

}  // namespace retroinfer
