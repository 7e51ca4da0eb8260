// The block numbers of every live sequence, in device memory, where the kernels read them. One row
// a sequence; a row is written when the sequence's blocks change, not every step.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/kv/id_allocator.h"

namespace retroinfer {

class BlockTables {
 public:
  // Room for `num_rows` sequences of up to `max_dense_blocks` and `max_meta_blocks` each.
  static absl::StatusOr<std::unique_ptr<BlockTables>> Create(Device& device, int32_t num_rows,
                                                             int64_t max_dense_blocks,
                                                             int64_t max_meta_blocks);
  static MemoryNeed MemoryOf(int32_t num_rows, int64_t max_dense_blocks, int64_t max_meta_blocks);

  IdAllocator& rows() { return rows_; }
  const IdAllocator& rows() const { return rows_; }

  absl::Status WriteDense(Stream& stream, int32_t row, std::span<const int32_t> blocks);
  // From the row's place `first` on: what the background reads before it is left alone.
  absl::Status WriteMeta(Stream& stream, int32_t row, std::span<const int32_t> blocks,
                         size_t first = 0);

  DeviceSpan<const int32_t> Dense(int32_t row) const;  // [max_dense_blocks]
  DeviceSpan<const int32_t> Meta(int32_t row) const;   // [max_meta_blocks]

 private:
  BlockTables(Device& device, int32_t num_rows, int64_t max_dense_blocks, int64_t max_meta_blocks)
      : device_(device),
        max_dense_blocks_(max_dense_blocks),
        max_meta_blocks_(max_meta_blocks),
        rows_(num_rows) {}

  absl::Status Write(Stream& stream, DeviceSpan<int32_t> row, std::span<const int32_t> blocks);

  Device& device_;
  const int64_t max_dense_blocks_;
  const int64_t max_meta_blocks_;
  DeviceBuffer dense_;
  DeviceBuffer meta_;
  IdAllocator rows_;
};

}  // namespace retroinfer
