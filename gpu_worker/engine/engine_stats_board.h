// Gathers the engine's statistics and hands snapshots to other threads.
//
// Threads: counters(), Update() and Publish() on the engine's, Read() on any.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/sequence_segments.h"
#include "gpu_worker/wave_buffer/block_cache.h"

namespace retroinfer {

class EngineStatsBoard {
 public:
  // What is reported; all of it outlives the board.
  struct Sources {
    const Device* device = nullptr;
    const KvMemory* memory = nullptr;
    BlockCache* cache = nullptr;
    const SegmentStore* store = nullptr;
    const SuspendedKv* suspended = nullptr;  // null: no request is suspended
    const SequenceSegments* segments = nullptr;
  };

  explicit EngineStatsBoard(const Sources& sources) : sources_(sources) {}

  // What the engine counts by itself.
  EngineStats& counters() { return counters_; }
  // The engine begins and ends a round of its loop.
  void BeginRound();
  void EndRound() { round_begun_ns_ = 0; }
  // Takes a snapshot of the counters and all sources. Asks the device only now and then.
  // `waited_ns`: what the engine's thread has waited for the device since start.
  void Update(const RequestCounts& requests, int64_t waited_ns);
  // Shows the snapshot to readers.
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the next update ask the device and wait for the answer.
  void RequireCacheStats() { cache_stats_required_ = true; }
  // Makes the snapshot that was published last the zero of all counters.
  void StartCounting() ABSL_LOCKS_EXCLUDED(mutex_);
  EngineStats Read() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void AddCacheStats(EngineStats& stats);

  const Sources sources_;
  EngineStats counters_;
  EngineStats snapshot_;
  BlockCacheStats cache_stats_;
  bool cache_stats_required_ = false;
  int64_t round_begun_ns_ = 0;  // 0: between rounds
  int64_t waited_ns_ = 0;       // as of the last update
  absl::Time next_cache_stats_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);  // the snapshot that was published last
  EngineStats zero_ ABSL_GUARDED_BY(mutex_);   // of the counters
};

}  // namespace retroinfer
