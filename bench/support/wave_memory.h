// KV memory of a model without services: an arena, a block cache with the store's half of it on a
// thread of this process, and device memory; and the policies over them, as the engine has them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/attention/wave_policy.h"
#include "kv_store_service/data_plane/data_plane_server.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"

namespace retroinfer::bench {

class WaveMemory {
 public:
  struct Sizes {
    KvGeometry geometry;
    std::vector<uint32_t> segment_tokens;  // of all sequences that the arena must hold at once
    double cache_share = 0;                // slots of the block cache, of the arena's pages
    int32_t num_query_heads = 0;
    int32_t dense_blocks = 0;
    int32_t max_batch = 1;
    int64_t max_model_len = 0;
    int64_t dense_below = 0;
    int64_t more_meta_blocks = 0;  // beside those of the segments
    Stretches stretches = {.least_tokens = 0};
    kvstore::Watermarks watermarks = {};
  };

  // Ends the program where memory is not to be had. `backend` must outlive it.
  WaveMemory(test_support::Backend& backend, Sizes sizes);

  std::unique_ptr<FullPolicy> CreateFullPolicy();
  // It must not outlive this, nor `observer`, which may be null; one at a time.
  std::unique_ptr<WavePolicy> CreateWavePolicy(RetrievalObserver* observer = nullptr);
  // Reserves what a sequence needs, with extents from `first_page` of the arena on. Returns the
  // page behind them.
  PageId Reserve(const KvNeed& need, PageId first_page, SequenceKv& kv);

  KvMemory& memory() { return *memory_; }
  BlockCache& cache() { return *cache_; }
  size_t arena_bytes() const { return arena_.size(); }
  // What segments have filled of it so far; a store gives the rest back when they are committed.
  uint64_t arena_bytes_used() const {
    return segments_ == nullptr ? 0 : segments_->builder().bytes_written();
  }
  uint32_t num_slots() const { return num_slots_; }
  // As of now.
  BlockCacheStats CacheStats();

 private:
  test_support::Backend& backend_;
  const Sizes sizes_;
  uint32_t num_slots_ = 0;
  std::span<std::byte> arena_;
  std::unique_ptr<test_support::DataPlaneMemory> plane_;
  std::unique_ptr<kvstore::DataPlaneServer> store_;
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<SequenceSegments> segments_;
  uint64_t next_extent_ = 1;
};

}  // namespace retroinfer::bench
