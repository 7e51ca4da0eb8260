// What is in the arena: extents, their segments, and the pages of the segments' clusters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kv_store_service/directory/segment_directory.h"
#include "kv_store_service/mapping/cluster_map.h"
#include "kv_store_service/store/store_state.h"

namespace retroinfer::kvstore {

// One extent for a listing.
struct ExtentListing {
  ExtentRecord record;
  uint64_t num_clusters = 0;
};

// What the cluster mapping table has of one segment.
struct SegmentClusters {
  uint64_t num_clusters = 0;  // over all layers and KV heads
  uint64_t num_empty = 0;     // clusters without a token
  uint64_t num_pages = 0;     // pages of all clusters, each once
  uint32_t max_tokens = 0;    // of the largest cluster
  uint32_t tokens_per_page = 0;
  std::vector<ClusterPages> of_head;  // of the head that was asked for
};

// Threads: all methods on any thread. Clusters are read without the lock.
// Owns:    nothing; `state` outlives the object.
class SegmentListing {
 public:
  explicit SegmentListing(const StoreState* state) : state_(*state) {}

  // Returns up to `limit` extents with an id above `after_extent_id`, in ascending order.
  std::vector<ExtentListing> List(uint64_t after_extent_id, size_t limit) const
      ABSL_LOCKS_EXCLUDED(state_.mutex);

  // Looks a segment's clusters up. `head`: layer and KV head whose clusters are returned one by
  // one.
  //
  // Returns: NOT_FOUND if there is no such extent; INVALID_ARGUMENT for a head that the model does
  //          not have; FAILED_PRECONDITION if the extent is not committed, or holds a block;
  //          ABORTED if the segment was evicted or released meanwhile; DATA_LOSS if its index is
  //          not the one that was committed.
  // Cost:    reads the index's entries, 12 bytes a cluster.
  struct Head {
    uint32_t layer = 0;
    uint32_t kv_head = 0;
  };
  absl::StatusOr<SegmentClusters> FindClusters(uint64_t extent_id, std::optional<Head> head) const
      ABSL_LOCKS_EXCLUDED(state_.mutex);

 private:
  // A segment to read, and the memory that it lies in.
  struct Segment {
    ArenaRef arena;
    KvGeometry geometry;
    PageRun pages;
    uint32_t num_tokens = 0;
  };
  absl::StatusOr<Segment> FindSegment(uint64_t extent_id) const ABSL_LOCKS_EXCLUDED(state_.mutex);

  const StoreState& state_;
};

}  // namespace retroinfer::kvstore
