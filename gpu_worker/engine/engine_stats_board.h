// Gathers the engine's statistics and hands snapshots to other threads.
//
// Threads: counters() and Update() on the engine's, Read() on any.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu_worker/attention/kv_memory.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/wave_buffer/block_cache.h"
#include "gpu_worker/wave_index/segment_builder.h"

namespace retroinfer {

class EngineStatsBoard {
 public:
  // What is reported; all of it outlives the board.
  struct Sources {
    const Device* device = nullptr;
    const KvMemory* memory = nullptr;
    BlockCache* cache = nullptr;
    const SegmentStore* store = nullptr;
    const SegmentBuilder* builder = nullptr;
  };

  explicit EngineStatsBoard(const Sources& sources) : sources_(sources) {}

  // What the engine counts by itself.
  EngineStats& counters() { return counters_; }
  // Publishes a snapshot of the counters and all sources. Asks the device only now and then.
  void Update(int64_t requests_running, int64_t requests_waiting) ABSL_LOCKS_EXCLUDED(mutex_);
  EngineStats Read() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void AddCacheStats(EngineStats& stats);

  const Sources sources_;
  EngineStats counters_;
  BlockCacheStats cache_stats_;
  absl::Time next_cache_stats_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer
