#include "gpu_worker/engine/engine_stats_board.h"

#include "common/clock/steady_now.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kCacheStatsInterval = absl::Milliseconds(100);

constexpr uint64_t EngineStats::*kCounters[] = {&EngineStats::prompt_tokens,
                                                &EngineStats::generation_tokens,
                                                &EngineStats::scored_prompt_tokens,
                                                &EngineStats::scored_tokens,
                                                &EngineStats::prefix_cache_queries_tokens,
                                                &EngineStats::prefix_cache_hits_tokens,
                                                &EngineStats::prefix_bytes_read,
                                                &EngineStats::prefix_bytes_shared,
                                                &EngineStats::prefill_rows_shared,
                                                &EngineStats::page_hits,
                                                &EngineStats::page_misses,
                                                &EngineStats::page_transients,
                                                &EngineStats::page_evictions,
                                                &EngineStats::evictions_kept,
                                                &EngineStats::page_fills,
                                                &EngineStats::arena_bytes_in,
                                                &EngineStats::arena_bytes_out,
                                                &EngineStats::segments_built,
                                                &EngineStats::segments_late,
                                                &EngineStats::preemptions,
                                                &EngineStats::resumptions,
                                                &EngineStats::memory_stalls,
                                                &EngineStats::store_reconnects,
                                                &EngineStats::allocation_failures,
                                                &EngineStats::decode_steps,
                                                &EngineStats::drafts_accepted,
                                                &EngineStats::drafts_rejected,
                                                &EngineStats::draft_model_steps,
                                                &EngineStats::decode_graphs_recorded,
                                                &EngineStats::decode_graphs_launched};

}  // namespace

void EngineStatsBoard::BeginRound() { round_begun_ns_ = absl::GetCurrentTimeNanos(); }

void EngineStatsBoard::Update(const RequestCounts& requests, int64_t waited_ns) {
  if (round_begun_ns_ != 0) {
    const int64_t now_ns = absl::GetCurrentTimeNanos();
    const int64_t round_ns = now_ns - round_begun_ns_;
    counters_.busy_seconds += static_cast<double>(round_ns - (waited_ns - waited_ns_)) * 1e-9;
    round_begun_ns_ = now_ns;
  }
  waited_ns_ = waited_ns;
  EngineStats& stats = snapshot_;
  stats = counters_;
  stats.requests_running = requests.running;
  stats.requests_waiting = requests.waiting;
  stats.requests_waiting_for_prefill = requests.waiting_for_prefill;
  stats.requests_suspended = requests.suspended;
  stats.requests_stalled = requests.stalled;
  if (sources_.suspended != nullptr) {
    stats.suspended_kv_bytes = static_cast<int64_t>(sources_.suspended->bytes_in_use());
  }
  stats.oldest_waiting = requests.oldest_waiting;
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
}

void EngineStatsBoard::Publish() {
  absl::MutexLock lock(&mutex_);
  stats_ = snapshot_;
}

void EngineStatsBoard::StartCounting() {
  absl::MutexLock lock(&mutex_);
  zero_ = stats_;
}

EngineStats EngineStatsBoard::Read() const {
  absl::MutexLock lock(&mutex_);
  EngineStats stats = stats_;
  for (uint64_t EngineStats::*const counter : kCounters) stats.*counter -= zero_.*counter;
  for (size_t source = 0; source < kNumDraftSources; ++source) {
    stats.accepted_by_source[source] -= zero_.accepted_by_source[source];
    stats.rejected_by_source[source] -= zero_.rejected_by_source[source];
  }
  stats.busy_seconds -= zero_.busy_seconds;
  stats.decode_host_seconds -= zero_.decode_host_seconds;
  stats.decode_mask_seconds -= zero_.decode_mask_seconds;
  return stats;
}

void EngineStatsBoard::AddCacheStats(EngineStats& stats) {
  if (const absl::Time now = common::SteadyNow();
      cache_stats_required_ || now >= next_cache_stats_) {
    next_cache_stats_ = now + kCacheStatsInterval;
    const absl::StatusOr<BlockCacheStats> cache =
        cache_stats_required_ ? sources_.cache->StatsNow() : sources_.cache->Stats();
    cache_stats_required_ = false;
    if (cache.ok()) cache_stats_ = *cache;
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
  stats.arena_bytes_in = counters.misses * sources_.cache->view().page_bytes;
  stats.arena_bytes_out = sources_.segments->builder().bytes_written();
  stats.segments_built = sources_.segments->builder().num_built();
  stats.segments_late = sources_.segments->num_late();
}

}  // namespace retroinfer
