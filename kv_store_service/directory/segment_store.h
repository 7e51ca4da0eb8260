// Everything that one attached worker keeps in the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "kv_store_service/arena/extent_allocator.h"
#include "kv_store_service/directory/segment_directory.h"
#include "kv_store_service/mapping/cluster_map.h"

namespace retroinfer::kvstore {

// A segment to commit.
struct SegmentToCommit {
  uint64_t extent_id = 0;
  uint64_t token_begin = 0;
  uint32_t token_count = 0;
};

// A sequence as a worker tells it to a restarted store.
struct SequenceToRestore {
  uint64_t sequence_id = 0;
  std::vector<ExtentRecord> extents;
};

// Joins the extent allocator, the segment directory and the cluster map, so that each operation
// happens in all three or in none.
//
// Threads: one at a time.
// Owns:    page numbers and private copies of the segments' indices; the arena is only read.
class SegmentStore {
 public:
  // REQUIRES: ValidateGeometry(geometry) is OK; the arena outlives the store.
  SegmentStore(std::span<const std::byte> arena, const KvGeometry& geometry);

  // Returns INVALID_ARGUMENT unless the geometry is valid and its largest segment can be counted in
  // pages.
  static absl::Status ValidateGeometry(const KvGeometry& geometry);

  // Reserves one extent per element, all or nothing. The same request again returns the same
  // extents.
  //
  // Returns: INVALID_ARGUMENT for token counts that are no segment; ALREADY_EXISTS if the sequence
  //          reserved something else; RESOURCE_EXHAUSTED (reason ARENA_FULL), with the numbers.
  absl::StatusOr<std::vector<ExtentRecord>> Reserve(uint64_t sequence_id,
                                                    std::span<const uint32_t> segment_tokens);

  // Checks the images and makes them segments, all or nothing; frees the tails of their extents.
  // Returns the records. Committing the same again changes nothing.
  //
  // Returns: NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION as CommitSegments in kv_store.proto.
  absl::StatusOr<std::vector<ExtentRecord>> Commit(uint64_t sequence_id,
                                                   std::span<const SegmentToCommit> segments);

  // Frees all of a sequence. Returns how many pages that were; 0 if it is unknown.
  uint64_t Release(uint64_t sequence_id);

  // Takes over what the worker says it holds, all or nothing.
  //
  // REQUIRES: the store is empty.
  // Returns:  INVALID_ARGUMENT if anything does not fit; the store is empty then.
  absl::Status Restore(std::span<const SequenceToRestore> sequences);

  const ExtentAllocator& allocator() const { return allocator_; }
  const SegmentDirectory& directory() const { return directory_; }
  const ClusterMap& clusters() const { return clusters_; }

 private:
  std::span<const std::byte> BytesOf(PageRun pages) const;
  absl::Status ArenaFull(uint64_t sequence_id, uint64_t needed_pages, size_t num_extents) const;
  absl::Status CheckToCommit(uint64_t sequence_id, const SegmentToCommit& segment) const;
  absl::Status RestoreSequence(const SequenceToRestore& sequence);
  absl::Status RestoreExtent(const ExtentRecord& extent);
  void Clear();

  const std::span<const std::byte> arena_;
  const KvGeometry geometry_;
  ExtentAllocator allocator_;
  SegmentDirectory directory_;
  ClusterMap clusters_;
  uint64_t last_extent_id_ = 0;
};

}  // namespace retroinfer::kvstore
