#include "gpu_worker/engine/engine_stats_board.h"

#include "absl/time/clock.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kCacheStatsInterval = absl::Milliseconds(100);

}  // namespace

void EngineStatsBoard::BeginRound() { round_begun_ns_ = absl::GetCurrentTimeNanos(); }

void EngineStatsBoard::Update(int64_t requests_running, int64_t requests_waiting,
                              int64_t waited_ns) {
  if (round_begun_ns_ != 0) {
    const int64_t round_ns = absl::GetCurrentTimeNanos() - round_begun_ns_;
    counters_.busy_seconds += static_cast<double>(round_ns - (waited_ns - waited_ns_)) * 1e-9;
    round_begun_ns_ = 0;
  }
  waited_ns_ = waited_ns;
  EngineStats stats = counters_;
  stats.requests_running = requests_running;
  stats.requests_waiting = requests_waiting;
  stats.dense_blocks_used = sources_.memory->dense_blocks().num_used();
  stats.dense_blocks_total = sources_.memory->dense_blocks().total();
  stats.meta_blocks_used = sources_.memory->meta_blocks().num_used();
  stats.meta_blocks_total = sources_.memory->meta_blocks().total();
  stats.table_rows_used = sources_.memory->table_rows().num_used();
  for (size_t i = 0; i < stats.device_memory_bytes.size(); ++i) {
    const auto purpose = static_cast<MemoryPurpose>(i);
    stats.device_memory_bytes[i] = static_cast<int64_t>(sources_.device->allocated_bytes(purpose));
  }
  stats.store_reconnects = sources_.store->num_reattached();
  stats.store_attached = sources_.store->attached();
  stats.ready = stats.store_attached;
  AddCacheStats(stats);
  absl::MutexLock lock(&mutex_);
  stats_ = stats;
}

EngineStats EngineStatsBoard::Read() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

void EngineStatsBoard::AddCacheStats(EngineStats& stats) {
  if (const absl::Time now = absl::Now(); now >= next_cache_stats_) {
    next_cache_stats_ = now + kCacheStatsInterval;
    if (const absl::StatusOr<BlockCacheStats> cache = sources_.cache->Stats(); cache.ok()) {
      cache_stats_ = *cache;
    }
  }
  const BlockCacheCounters& counters = cache_stats_.counters;
  stats.slots_total = cache_stats_.num_slots;
  stats.slots_used = cache_stats_.num_used_slots;
  stats.page_hits = counters.hits;
  stats.page_misses = counters.admissions;
  stats.page_transients = counters.transients;
  stats.page_evictions = counters.evictions;
  stats.evictions_kept = counters.evictions_kept;
  stats.page_fills = counters.fills;
  stats.arena_bytes_in = counters.misses * kPageBytes;
  stats.arena_bytes_out = sources_.builder->bytes_written();
  stats.segments_built = sources_.builder->num_built();
}

}  // namespace retroinfer
