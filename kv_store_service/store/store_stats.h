// Sizes and counters of a store.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "kv_store_service/data_plane/data_plane_server.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/lease/worker_lease.h"
#include "kv_store_service/tier/durable_tier.h"

namespace retroinfer::kvstore {

struct StoreStats {
  bool worker_attached = false;
  pid_t worker_pid = 0;
  KvGeometry geometry;
  std::string model_fingerprint;
  uint64_t arena_pages = 0;
  uint64_t free_pages = 0;
  uint64_t largest_free_pages = 0;
  uint64_t withheld_pages = 0;  // that a former worker may write to
  uint64_t reserved_extents = 0;
  uint64_t committed_segments = 0;
  uint64_t sequences = 0;
  uint64_t clusters = 0;
  uint64_t named_segments = 0;
  uint64_t named_pages = 0;
  uint64_t unreferenced_pages = 0;  // of named segments that no sequence uses
  PrefixCounters prefix;            // of this process
  std::optional<DurableTier::Stats> durable;
  bool durable_missing = false;  // there was to be a disk tier and it could not be opened
  uint64_t durable_skipped = 0;  // segments not written because the disk is too slow
  // Of all planes together; counters over all attachments of this process.
  DataPlaneStats data_plane;
  std::vector<DataPlaneStats> planes;  // of the attached worker, by rank; since its attachment
  uint64_t workers_attached = 0;
  uint64_t adoptions = 0;
  uint64_t segments_committed = 0;  // in all
  uint64_t segments_refused = 0;
  uint64_t reservations_refused = 0;  // the arena was full
};

// Adds what counts over time.
void AddCounters(const DataPlaneStats& from, DataPlaneStats* to);
void AddCounters(const WorkerPlanes& planes, DataPlaneStats* to);
void AddCounters(const PrefixCounters& from, PrefixCounters* to);
// Adds what is in the arena.
void AddSegmentStats(const ArenaSegments& segments, StoreStats* stats);
// Adds the worker that has the lease, and what its data planes say.
void AddHolderStats(const Attachment& holder, StoreStats* stats);

}  // namespace retroinfer::kvstore
