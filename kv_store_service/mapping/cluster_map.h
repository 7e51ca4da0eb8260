// The cluster half of the cluster mapping table: cluster -> pages of the arena.
//
// The table is what the segments say of themselves: each begins with the first page and the size of
// every cluster (common/kv/segment_layout.h). The store keeps no copy, so the table takes no memory
// of the store. A worker can change the bytes of its segments at any time: each look-up copies the
// entries of one (layer, KV head) and checks them, as the commit did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/segment_layout.h"
#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// Where one cluster is.
struct ClusterPages {
  PageRun pages;            // count 0 for an empty cluster; a packed one may share its first page
                            // with the one before, and its last one with the one behind
  uint32_t num_tokens = 0;  // in those pages

  friend bool operator==(const ClusterPages&, const ClusterPages&) = default;
};

// Clusters of a segment of so many tokens, over all layers and KV heads; 0 for a block, which has
// no index.
uint64_t NumClusters(const KvGeometry& geometry, uint32_t num_tokens);

// The table's part of one segment.
//
// Threads: any; the bytes may change meanwhile.
// Owns:    nothing; the bytes outlive the object.
class ClusterMap {
 public:
  // `extent`: the segment's bytes, of whole pages; they lie from page `first_page` of the arena on.
  //
  // REQUIRES: it is no block (IsBlock()), and `extent` has its index.
  ClusterMap(std::span<const std::byte> extent, PageId first_page, const KvGeometry& geometry,
             uint32_t num_tokens);

  size_t num_heads() const { return num_heads_; }  // layers * KV heads

  // Returns where the clusters of one head (layer * kv_heads + kv_head) are, in their order.
  // `taken` has an element for each page of the extent: marks the clusters' pages, over several
  // calls.
  //
  // REQUIRES: head < num_heads(); taken->size() is the number of pages.
  // Returns:  INVALID_ARGUMENT, naming the cluster and both values, unless each cluster's pages lie
  //           between the index and the end of the extent and are not taken yet, radii are finite
  //           and not negative, and the clusters have num_tokens tokens in sum. Where clusters are
  //           packed, the pages are the head's, and each cluster begins where the one before ends.
  // Cost:     O(clusters + pages of the head).
  absl::StatusOr<std::vector<ClusterPages>> Find(size_t head, std::vector<bool>* taken) const;

 private:
  ClusterPlace PlaceOf(const ClusterEntry& entry) const {
    return {entry.first_place, geometry_.places_per_page()};
  }
  // What Find() requires of the entries of one head.
  absl::Status Check(std::span<const ClusterEntry> entries, std::vector<bool>* taken) const;

  const std::span<const std::byte> extent_;
  const PageId first_page_;
  const KvGeometry geometry_;
  const uint32_t num_tokens_;
  const SegmentLayout layout_;
  const size_t num_heads_;
};

}  // namespace retroinfer::kvstore
