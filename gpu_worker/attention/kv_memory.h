// The device memory that sequences live in: the dense pool, the meta pool and the block tables,
// with who holds which block.
//
// Threads: the engine's thread.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/block_tables.h"
#include "gpu_worker/attention/id_allocator.h"
#include "gpu_worker/attention/sequence_kv.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct KvMemorySizes {
  KvGeometry geometry;
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  int32_t max_sequences = 0;  // alive at once, waiting for release included
  int64_t max_model_len = 0;  // tokens
};

class KvMemory {
 public:
  static absl::StatusOr<std::unique_ptr<KvMemory>> Create(Device& device,
                                                          const KvMemorySizes& sizes);

  // Gives `sequence` its blocks and a row of the block tables. Returns false, having done nothing,
  // if there is no room now. REQUIRES: the sequence holds nothing.
  bool Reserve(const KvNeed& need, SequenceKv& sequence);
  // Takes everything back. The extents are not the pool's affair.
  void Free(SequenceKv& sequence);

  // Whether `need` fits into an empty pool, and a row of the tables.
  bool CouldFit(const KvNeed& need) const;

  DensePoolView dense_pool() const { return {dense_buffer_.bytes(), sizes_.geometry}; }
  MetaPoolView meta_pool() const { return {meta_buffer_.bytes(), sizes_.geometry}; }
  BlockTables& tables() { return *tables_; }
  const IdAllocator& table_rows() const { return std::as_const(*tables_).rows(); }
  const IdAllocator& dense_blocks() const { return dense_blocks_; }
  const IdAllocator& meta_blocks() const { return meta_blocks_; }
  const KvMemorySizes& sizes() const { return sizes_; }

 private:
  explicit KvMemory(const KvMemorySizes& sizes)
      : sizes_(sizes), dense_blocks_(sizes.dense_blocks), meta_blocks_(sizes.meta_blocks) {}

  const KvMemorySizes sizes_;
  DeviceBuffer dense_buffer_;
  DeviceBuffer meta_buffer_;
  std::unique_ptr<BlockTables> tables_;
  IdAllocator dense_blocks_;
  IdAllocator meta_blocks_;
};

}  // namespace retroinfer
