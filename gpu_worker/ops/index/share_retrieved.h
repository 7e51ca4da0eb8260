// Makes one retrieval zone of those of a run of rows (row_run.h): the clusters that any of the rows
// retrieves. What a row would estimate of them leaves its estimation zone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/row_run.h"

namespace retroinfer {

struct ShareRetrievedArgs {
  DeviceSpan<const RowRun> runs;  // of the batch, no two with a row in common
  int32_t batch = 0;
  int32_t num_kv_heads = 0;
  int64_t max_clusters = 0;  // no cluster has this number, or a larger one
  // Zones as cluster_select.h leaves them. Of each run the first row gets the clusters of all, by
  // number, and the others get none. REQUIRES: max_retrieved suffices for them.
  int64_t max_retrieved = 0;
  DeviceSpan<int32_t> retrieved;      // [batch, kv_heads, max_retrieved]
  DeviceSpan<int32_t> num_retrieved;  // [batch, kv_heads]
  // Those that stay keep their order.
  int64_t max_estimated = 0;
  DeviceSpan<int32_t> estimated;      // [batch, kv_heads, max_estimated]
  DeviceSpan<int32_t> num_estimated;  // [batch, kv_heads]
  DeviceSpan<std::byte> scratch;      // at least ShareRetrievedScratchBytes(), aligned to 8 bytes
};

// A bit for each cluster of each run and KV head.
constexpr size_t ShareRetrievedScratchBytes(size_t num_runs, int32_t num_kv_heads,
                                            int64_t max_clusters) {
  return num_runs * static_cast<size_t>(num_kv_heads) *
         static_cast<size_t>((max_clusters + 63) / 64) * sizeof(uint64_t);
}

}  // namespace retroinfer
