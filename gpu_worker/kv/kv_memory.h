// The device memory that sequences live in: the dense pool, the meta pool and the block tables,
// with who holds which block.
//
// Threads: the engine's thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_head_range.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/kv/block_tables.h"
#include "gpu_worker/kv/id_allocator.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct KvMemorySizes {
  KvGeometry geometry;
  KvHeadRange heads;  // of the arena's, that `geometry` has
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  int32_t max_sequences = 0;  // alive at once, waiting for release included
  int64_t max_model_len = 0;  // tokens

  // Of segments and saved blocks.
  KvGeometry arena_geometry() const { return heads.ArenaOf(geometry); }
};

class KvMemory {
 public:
  static absl::StatusOr<std::unique_ptr<KvMemory>> Create(Device& device,
                                                          const KvMemorySizes& sizes);
  static MemoryNeed MemoryOf(const KvMemorySizes& sizes);

  // Gives `sequence` its first blocks and a row of the block tables. Returns false, having done
  // nothing, if too few are free. REQUIRES: the sequence holds nothing.
  bool Reserve(const KvBlocks& need, SequenceKv& sequence);
  bool Reserve(const KvNeed& need, SequenceKv& sequence) {
    return Reserve({.dense = need.dense_blocks, .meta = need.meta_blocks}, sequence);
  }
  // Gives it more. The block tables know of them after TellTables(). Returns false, having done
  // nothing, if too few are free. REQUIRES: Reserve() was called.
  bool Grow(const KvBlocks& more, SequenceKv& sequence);
  // Before a step that the caller waits for: enqueues what the tables do not know yet.
  absl::Status TellTables(Stream& stream, SequenceKv& sequence);
  // Takes back dense blocks behind the first `num_dense`, which hold no tokens.
  // REQUIRES: the device has done what reads them.
  void GiveBack(int32_t num_dense, SequenceKv& sequence);
  // The index of a cached segment is there once, however many sequences attend to it. Replaces the
  // sequence's blocks for such segments by those that another one has already, and gives its own
  // back; the others are there for who comes next.
  //
  // REQUIRES: Reserve() was called; blocks and extents of the cached segments come in one order.
  // Called once, before the first layer.
  void ShareIndexes(SequenceKv& sequence);
  // Whether a layer of the cached segment's index has to be loaded into its blocks by who asks; the
  // layer counts as loaded from then on. Layers come in order.
  bool TakeIndexLayer(const Extent& extent, uint32_t layer);

  // Tokens of the cached segments whose index the sequence shares and to which no step has attended
  // since the index came to the device: a step that does misses most pages that it retrieves.
  // Cost: O(segments).
  int64_t ColdTokens(const SequenceKv& sequence) const;
  // A step has attended to the sequence's context, and has fetched the pages that it missed.
  void Attended(const SequenceKv& sequence);

  // Meta blocks that come free when the sequence gives all of its own up: those that it shares with
  // other sequences do not.
  int32_t OwnMetaBlocks(const SequenceKv& sequence) const;
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
  // Of a cached segment that somebody attends to.
  struct SharedIndex {
    std::vector<MetaBlockId> blocks;
    int32_t users = 0;
    uint32_t num_layers = 0;  // loaded, or on the compute stream
    bool is_attended = false;
  };

  void UnshareIndexes(SequenceKv& sequence);
  explicit KvMemory(const KvMemorySizes& sizes)
      : sizes_(sizes), dense_blocks_(sizes.dense_blocks), meta_blocks_(sizes.meta_blocks) {}

  const KvMemorySizes sizes_;
  DeviceBuffer dense_buffer_;
  DeviceBuffer meta_buffer_;
  std::unique_ptr<BlockTables> tables_;
  IdAllocator dense_blocks_;
  IdAllocator meta_blocks_;
  absl::flat_hash_map<uint64_t, SharedIndex> shared_indexes_;  // by extent id
};

}  // namespace retroinfer
