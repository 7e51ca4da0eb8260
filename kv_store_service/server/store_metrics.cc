#include "kv_store_service/server/store_metrics.h"

#include <string>
#include <utility>

namespace retroinfer::kvstore {
namespace {

double UsedPages(const StoreStats& s) { return double(s.arena_pages) - double(s.free_pages); }
// Without what is evicted as soon as room is needed.
double HeldPages(const StoreStats& s) { return UsedPages(s) - double(s.unreferenced_pages); }

// Exactly one of them holds at a time.
struct TierState {
  const char* name;
  bool (*is)(const StoreStats&);
};
constexpr TierState kTierStates[] = {
    {"off", [](const StoreStats& s) { return !s.durable.has_value() && !s.durable_missing; }},
    {"on",
     [](const StoreStats& s) { return s.durable.has_value() && !s.durable->persister.degraded; }},
    {"degraded",
     [](const StoreStats& s) { return s.durable.has_value() && s.durable->persister.degraded; }},
    {"missing", [](const StoreStats& s) { return s.durable_missing; }},
};

}  // namespace

StoreMetrics::StoreMetrics(common::Metrics* metrics, const KvStore* store)
    : metrics_(metrics), store_(store) {
  using S = const StoreStats&;
  AddGauge("worker_attached", "1 while a worker is attached",
           [](S s) { return s.worker_attached ? 1.0 : 0.0; });
  AddGauge("arena_bytes", "Size of the arena",
           [](S s) { return double(s.arena_pages) * kPageBytes; });
  AddGauge("arena_used_bytes", "Bytes of the arena that are reserved or hold segments",
           [](S s) { return UsedPages(s) * kPageBytes; });
  AddGauge("arena_usage_ratio", "Share of the arena that running sequences hold",
           [](S s) { return s.arena_pages == 0 ? 0.0 : HeldPages(s) / double(s.arena_pages); });
  AddGauge("arena_largest_free_bytes", "Longest free run of the arena",
           [](S s) { return double(s.largest_free_pages) * kPageBytes; });
  AddGauge("arena_withheld_bytes",
           "Bytes that nobody gets until the process of a former worker is gone",
           [](S s) { return double(s.withheld_pages) * kPageBytes; });
  AddGauge("sequences", "Sequences that hold extents", [](S s) { return double(s.sequences); });
  AddGauge("reserved_extents", "Extents that are reserved and not committed",
           [](S s) { return double(s.reserved_extents); });
  AddGauge("segments", "Committed segments", [](S s) { return double(s.committed_segments); });
  AddGauge("prefix_cache_segments", "Committed segments that are found by their name",
           [](S s) { return double(s.named_segments); });
  AddGauge("prefix_cache_bytes", "Bytes of the arena in segments that are found by their name",
           [](S s) { return double(s.named_pages) * kPageBytes; });
  AddGauge("prefix_cache_unreferenced_bytes",
           "Bytes of the arena in such segments that no sequence uses: evicted when needed",
           [](S s) { return double(s.unreferenced_pages) * kPageBytes; });
  AddGauge("clusters", "Entries of the cluster mapping table",
           [](S s) { return double(s.clusters); });
  AddGauge("mirror_slots", "Slots of the worker's block cache",
           [](S s) { return double(s.data_plane.num_slots); });
  AddGauge("mirror_slots_used", "Of those, in use by the replay of the access log",
           [](S s) { return double(s.data_plane.used_slots); });
  AddGauge("evictions_in_flight", "Eviction requests without an answer",
           [](S s) { return double(s.data_plane.in_flight); });
  AddGauge("access_log_depth", "Entries of the access log that are not replayed",
           [](S s) { return double(s.data_plane.log_depth); });

  AddDurable();

  AddCounter("workers_attached_total", "Attachments of workers",
             [](S s) { return double(s.workers_attached); });
  AddCounter("memory_adoptions_total", "Arenas taken over from a live worker",
             [](S s) { return double(s.adoptions); });
  AddCounter("segments_committed_total", "Segments committed",
             [](S s) { return double(s.segments_committed); });
  AddCounter("segments_refused_total", "Commits refused",
             [](S s) { return double(s.segments_refused); });
  AddCounter("reservations_refused_total", "Reservations refused because the arena was full",
             [](S s) { return double(s.reservations_refused); });
  AddCounter("reservation_queries_tokens_total", "Tokens of named segments in reservations",
             [](S s) { return double(s.prefix.queries_tokens); });
  AddCounter("reservation_hits_tokens_total", "Tokens of those that were in committed segments",
             [](S s) { return double(s.prefix.hits_tokens); });
  AddCounter("row_queries_tokens_total", "Tokens of prompts whose rows were looked for",
             [](S s) { return double(s.prefix.rows_queries_tokens); });
  AddCounter("row_hits_tokens_total", "Tokens of those that were in segments and blocks",
             [](S s) { return double(s.prefix.rows_hits_tokens); });
  AddCounter("prefix_cache_evictions_total", "Unreferenced named segments that made room",
             [](S s) { return double(s.prefix.evictions); });
  AddCounter("access_log_entries_total", "Entries of the access log replayed",
             [](S s) { return double(s.data_plane.entries_replayed); });
  AddCounter(
      "access_log_refused_total", "Entries and cursors of the access log that were garbage",
      [](S s) { return double(s.data_plane.entries_refused + s.data_plane.cursors_refused); });
  AddCounter("eviction_requests_posted_total", "Eviction requests posted",
             [](S s) { return double(s.data_plane.requests_posted); });
  AddCounter("eviction_requests_applied_total", "Eviction requests that freed a slot",
             [](S s) { return double(s.data_plane.evictions_applied); });
  AddCounter("eviction_requests_refused_total",
             "Eviction requests refused: the slot was used since",
             [](S s) { return double(s.data_plane.evictions_kept); });
  update_id_ = metrics_->OnScrape([this] { Update(); });
}

// Of segments that come in parts, their indexes first.
void StoreMetrics::AddParts() {
  using D = const DurableTier::Stats&;
  const auto of = [](double (*value)(D)) {
    return [value](const StoreStats& s) { return s.durable.has_value() ? value(*s.durable) : 0.0; };
  };
  AddCounter("durable_index_bytes_total",
             "Bytes of indexes that were read before the rest of their segments",
             of([](D d) { return double(d.index_bytes_total); }));
  AddCounter("durable_asked_bytes_total",
             "Bytes that steps asked for, of segments whose index was read first",
             of([](D d) { return double(d.asked_bytes_total); }));
  AddCounter("durable_behind_bytes_total",
             "Bytes that nobody asked for, of segments whose index was read first",
             of([](D d) { return double(d.behind_bytes_total); }));
  AddCounter("durable_part_requests_total", "Requests of the worker for parts of segments",
             of([](D d) { return double(d.part_requests_total); }));
  AddCounter("durable_part_request_seconds_total",
             "Time of the worker's requests for parts of segments",
             of([](D d) { return d.part_request_seconds_total; }));
}

void StoreMetrics::AddDurable() {
  using D = const DurableTier::Stats&;
  const auto of = [](double (*value)(D)) {
    return [value](const StoreStats& s) { return s.durable.has_value() ? value(*s.durable) : 0.0; };
  };
  AddGauge("durable_tier", "1 while there is a disk tier",
           [](const StoreStats& s) { return s.durable.has_value() ? 1.0 : 0.0; });
  AddTierStates();
  AddGauge("durable_degraded", "1 while a failed disk is left alone for a while",
           of([](D d) { return d.persister.degraded ? 1.0 : 0.0; }));
  AddGauge("durable_segments", "Segments on disk",
           of([](D d) { return double(d.storage.segments); }));
  AddGauge("durable_bytes", "Bytes on disk, everything included",
           of([](D d) { return double(d.storage.physical_bytes); }));
  AddGauge("durable_limit_bytes", "Most that may lie on disk; 0: no limit, or no disk tier",
           of([](D d) { return double(d.limit_bytes); }));
  AddGauge("durable_disk_bytes", "Size of the file system that the disk tier is on",
           of([](D d) { return double(d.disk_bytes); }));
  AddGauge("durable_disk_free_bytes", "What the store may still write on that file system",
           of([](D d) { return double(d.disk_free_bytes); }));
  AddGauge("durable_queued_segments", "Segments that wait to be written",
           of([](D d) { return double(d.persister.queued); }));
  AddGauge("durable_quarantined_segments", "Damaged segments that are kept aside",
           of([](D d) { return double(d.storage.quarantined); }));
  AddCounter("durable_persisted_total", "Segments written to disk",
             of([](D d) { return double(d.persister.persisted_total); }));
  AddCounter("durable_persisted_bytes_total", "Bytes of segments written to disk",
             of([](D d) { return double(d.persister.persisted_bytes_total); }));
  AddCounter("durable_write_seconds_total", "Time of the disk tier in writes that succeeded",
             of([](D d) { return d.persister.write_seconds_total; }));
  AddCounter("durable_write_failures_total", "Segments that could not be written",
             of([](D d) { return double(d.persister.failed_total); }));
  AddCounter("durable_dropped_total", "Segments that were not written: queue full or disk degraded",
             of([](D d) { return double(d.persister.dropped_total + d.persister.no_room_total); }));
  AddCounter("durable_skipped_total",
             "Segments that left the arena before the disk had time for them",
             [](const StoreStats& s) { return double(s.durable_skipped); });
  AddCounter("durable_restored_total", "Segments read back from disk",
             of([](D d) { return double(d.restored_total); }));
  AddCounter("durable_restored_bytes_total", "Bytes of segments read back from disk",
             of([](D d) { return double(d.restored_bytes_total); }));
  AddCounter("durable_restore_seconds_total", "Time of the disk tier in reading segments back",
             of([](D d) { return d.restore_seconds_total; }));
  AddCounter("durable_restore_failures_total", "Segments that could not be read back",
             of([](D d) { return double(d.restore_failures_total); }));
  AddParts();
  AddCounter("durable_corrupt_total", "Records and images on disk that failed a check",
             of([](D d) { return double(d.storage.corrupt_total); }));
  AddGauge("contexts", "Contexts that have a name",
           of([](D d) { return double(d.storage.contexts); }));
  AddGauge("contexts_pinned", "Contexts that are never evicted",
           of([](D d) { return double(d.pinned_contexts); }));
  AddGauge("contexts_pinned_bytes", "Bytes on disk of segments of pinned contexts",
           of([](D d) { return double(d.pinned_bytes); }));
  AddCounter("contexts_expired_total", "Contexts whose time to live was over",
             of([](D d) { return double(d.budget.expired_contexts_total); }));
  const char* const evictions = "durable_evictions_total";
  const char* const help = "Segments removed from disk, by reason";
  AddCounter(evictions, help, of([](D d) { return double(d.budget.expired_total); }),
             {{"reason", "ttl"}});
  AddCounter(evictions, help, of([](D d) { return double(d.budget.over_quota_total); }),
             {{"reason", "tenant_quota"}});
  AddCounter(evictions, help, of([](D d) { return double(d.budget.over_cap_total); }),
             {{"reason", "watermark"}});
  AddCounter("durable_evicted_bytes_total", "Bytes of segments removed from disk for its limits",
             of([](D d) { return double(d.budget.evicted_bytes_total); }));
}

void StoreMetrics::AddTierStates() {
  for (const TierState& state : kTierStates) {
    AddGauge(
        "durable_tier_state",
        "1 for the state of the disk tier: off (not asked for), on, degraded (a failed disk is "
        "left alone for a while), missing (asked for, and could not be opened)",
        [state](const StoreStats& s) { return state.is(s) ? 1.0 : 0.0; }, {{"state", state.name}});
  }
}

// Of one rank of a worker that has several; what the worker has in all is in the metrics without
// that label.
void StoreMetrics::AddRank(size_t rank) {
  const common::Metrics::Labels labels = {{"rank", std::to_string(rank)}};
  const auto of = [rank](double (*value)(const DataPlaneStats&)) {
    return [rank, value](const StoreStats& s) {
      return s.planes.size() > 1 && rank < s.planes.size() ? value(s.planes[rank]) : 0.0;
    };
  };
  using P = const DataPlaneStats&;
  AddGauge("rank_mirror_slots", "Slots of the block cache of one rank",
           of([](P p) { return double(p.num_slots); }), labels);
  AddGauge("rank_mirror_slots_used", "Of those, in use by the replay of the rank's access log",
           of([](P p) { return double(p.used_slots); }), labels);
  AddGauge("rank_evictions_in_flight", "Eviction requests to one rank without an answer",
           of([](P p) { return double(p.in_flight); }), labels);
  AddGauge("rank_access_log_depth", "Entries of one rank's access log that are not replayed",
           of([](P p) { return double(p.log_depth); }), labels);
  AddGauge("rank_access_log_refused",
           "Entries and cursors of one rank's access log that were garbage, since it attached",
           of([](P p) { return double(p.entries_refused + p.cursors_refused); }), labels);
}

StoreMetrics::~StoreMetrics() { metrics_->RemoveOnScrape(update_id_); }

void StoreMetrics::AddGauge(const char* name, const char* help, Value value,
                            const common::Metrics::Labels& labels) {
  gauges_.push_back({&metrics_->Gauge(name, help, labels), std::move(value)});
}

void StoreMetrics::AddCounter(const char* name, const char* help, Value value,
                              const common::Metrics::Labels& labels) {
  counters_.push_back({&metrics_->Counter(name, help, labels), std::move(value)});
}

void StoreMetrics::Update() {
  const StoreStats stats = store_->stats();
  const size_t num_ranks = stats.planes.size() > 1 ? stats.planes.size() : 0;
  while (num_ranks_ < num_ranks) AddRank(num_ranks_++);
  for (const Gauge& gauge : gauges_) gauge.gauge->Set(gauge.value(stats));
  for (const Counter& counter : counters_) {
    const double increase = counter.value(stats) - counter.counter->Value();
    if (increase > 0) counter.counter->Increment(increase);
  }
}

}  // namespace retroinfer::kvstore
