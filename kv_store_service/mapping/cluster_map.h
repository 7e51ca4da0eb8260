// The cluster half of the cluster mapping table: cluster -> pages of the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/kv/segment_layout.h"
#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// Where one cluster is.
struct ClusterPages {
  PageRun pages;            // in the arena; count 0 for an empty cluster
  uint32_t num_tokens = 0;  // in those pages

  friend bool operator==(const ClusterPages&, const ClusterPages&) = default;
};

// Threads: one at a time.
// Owns:    the entries of all committed segments, 8 bytes a cluster.
class ClusterMap {
 public:
  // Adds the clusters of a segment, checked by ReadSegmentImage().
  //
  // REQUIRES: extent_id is new; the entries count pages from `first_page`.
  void Insert(uint64_t extent_id, PageId first_page, uint32_t tokens_per_page,
              std::vector<ClusterEntry> clusters);
  // Forgets a segment, if known.
  void Erase(uint64_t extent_id);
  void Clear();

  // Returns where cluster `index` ([layers][kv_heads][clusters], row-major) of a segment is;
  // nothing if the segment or the index is unknown.
  std::optional<ClusterPages> Find(uint64_t extent_id, size_t index) const;

  // Clusters of one segment; 0 if unknown.
  size_t num_clusters(uint64_t extent_id) const;
  // Clusters of all segments.
  size_t num_clusters() const { return num_clusters_; }

 private:
  struct Segment {
    PageId first_page;
    uint32_t tokens_per_page;
    std::vector<ClusterEntry> clusters;
  };

  std::unordered_map<uint64_t, Segment> segments_;
  size_t num_clusters_ = 0;
};

}  // namespace retroinfer::kvstore
