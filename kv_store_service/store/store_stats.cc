#include "kv_store_service/store/store_stats.h"

namespace retroinfer::kvstore {

void AddCounters(const DataPlaneStats& from, DataPlaneStats* to) {
  to->entries_replayed += from.entries_replayed;
  to->entries_refused += from.entries_refused;
  to->cursors_refused += from.cursors_refused;
  to->requests_posted += from.requests_posted;
  to->evictions_applied += from.evictions_applied;
  to->evictions_kept += from.evictions_kept;
}

void AddCounters(const WorkerPlanes& planes, DataPlaneStats* to) {
  for (const DataPlaneStats& plane : planes.stats()) AddCounters(plane, to);
}

void AddCounters(const PrefixCounters& from, PrefixCounters* to) {
  to->queries_tokens += from.queries_tokens;
  to->hits_tokens += from.hits_tokens;
  to->evictions += from.evictions;
  to->rows_queries_tokens += from.rows_queries_tokens;
  to->rows_hits_tokens += from.rows_hits_tokens;
}

void AddSegmentStats(const ArenaSegments& segments, StoreStats* stats) {
  const SegmentDirectory& directory = segments.directory();
  stats->free_pages = segments.allocator().free_pages();
  stats->largest_free_pages = segments.allocator().largest_free();
  stats->withheld_pages = segments.withheld_pages();
  stats->committed_segments = directory.num_committed();
  stats->reserved_extents = directory.num_extents() - stats->committed_segments;
  stats->sequences = directory.num_sequences();
  stats->clusters = segments.num_clusters();
  stats->named_segments = directory.num_named();
  stats->named_pages = directory.named_pages();
  stats->unreferenced_pages = directory.unreferenced_pages();
  AddCounters(segments.counters(), &stats->prefix);
}

void AddHolderStats(const Attachment& holder, StoreStats* stats) {
  stats->worker_attached = true;
  stats->worker_pid = holder.pid;
  stats->geometry = holder.parameters.geometry;
  stats->model_fingerprint = holder.parameters.model_fingerprint;
  stats->planes = holder.planes->stats();
  DataPlaneStats& sum = stats->data_plane;
  for (const DataPlaneStats& plane : stats->planes) {
    AddCounters(plane, &sum);
    sum.used_slots += plane.used_slots;
    sum.num_slots += plane.num_slots;
    sum.in_flight += plane.in_flight;
    sum.log_depth += plane.log_depth;
  }
}

}  // namespace retroinfer::kvstore
