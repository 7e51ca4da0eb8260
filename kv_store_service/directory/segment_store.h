// Everything that one attached worker keeps in the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"
#include "kv_store_service/arena/extent_allocator.h"
#include "kv_store_service/directory/segment_directory.h"
#include "kv_store_service/mapping/cluster_map.h"

namespace retroinfer::kvstore {

// A segment to commit.
struct SegmentToCommit {
  uint64_t extent_id = 0;
  uint64_t token_begin = 0;
  uint32_t token_count = 0;
  std::optional<SegmentIdentity> identity = std::nullopt;  // set: other sequences may find it
};

// A sequence as a worker tells it to a restarted store.
struct SequenceToRestore {
  uint64_t sequence_id = 0;
  std::vector<ExtentRecord> extents;
  size_t num_cached = 0;  // leading ones that were cached when it reserved
};

// A named segment as a worker tells it to a restarted store.
struct SegmentToRestore {
  ExtentRecord extent;
  SegmentIdentity identity;
};

// The extents of a sequence, in the order of its request.
struct Reservation {
  std::vector<ExtentRecord> extents;
  size_t num_cached = 0;  // leading ones that hold the wanted segments already
};

// Since the construction of the store.
struct PrefixCounters {
  uint64_t queries_tokens = 0;  // of named segments in reservations
  uint64_t hits_tokens = 0;     // of those, in cached segments
  uint64_t evictions = 0;       // of named segments
};

// Sequences from here on are the store's own: segments that it reads back from the disk.
inline constexpr uint64_t kOwnSequences = uint64_t{1} << 63;

// Joins the extent allocator, the segment directory and the cluster map, so that each operation
// happens in all three or in none. Keeps named segments that no sequence references until their
// room is needed.
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

  // Names the model whose segments are found and committed from now on.
  void SetFingerprint(const common::Hash256& fingerprint) { fingerprint_ = fingerprint; }

  // Segments of these names are not evicted, as long as they take at most half of the arena.
  // REQUIRES: `names` outlives the store.
  void KeepNamed(const absl::flat_hash_set<common::SegmentName>* names) { kept_ = names; }

  // References the longest leading run of named segments that are committed, tokens compared, and
  // reserves an extent for each other element, all or nothing. Evicts unreferenced segments, the
  // one released first first, as far as it needs their room. The same request again returns the
  // same extents.
  //
  // Returns: INVALID_ARGUMENT for token counts that are no segment and names that are no chain;
  //          ALREADY_EXISTS if the sequence reserved something else; RESOURCE_EXHAUSTED (reason
  //          ARENA_FULL), with the numbers; ABORTED (reason SEGMENT_IN_PROGRESS) if another
  //          sequence has reserved the next named segment, unless `compute_anyway`.
  //          In both cases and if DiskHoldsRoom(), reason WAITS_FOR_DISK if it is the disk's.
  absl::StatusOr<Reservation> Reserve(const ReserveRequest& request, bool compute_anyway = false);

  // Checks the images and makes them segments, all or nothing; frees the tails of their extents.
  // Returns the records. Committing the same again changes nothing.
  //
  // Returns: NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION as CommitSegments in kv_store.proto.
  absl::StatusOr<std::vector<ExtentRecord>> Commit(uint64_t sequence_id,
                                                   std::span<const SegmentToCommit> segments);

  // Frees all of a sequence that no other one uses, except named segments. Returns how many pages
  // that were; 0 if it is unknown.
  uint64_t Release(uint64_t sequence_id);
  // Releases all sequences of the worker.
  uint64_t ReleaseAll();

  // Keeps a named segment in the arena until Unpin(), besides the sequences.
  void Pin(uint64_t extent_id) { directory_.Pin(extent_id); }
  void Unpin(uint64_t extent_id) { directory_.Unpin(extent_id); }

  // Evicts the named segment if it is there and nothing uses it. Returns whether it did.
  bool EvictNamed(const common::SegmentName& name);

  // Whether segments that the disk is about to let go take room in the arena.
  bool DiskHoldsRoom() const {
    return directory_.pinned_pages() > 0 || directory_.HasSequenceFrom(kOwnSequences);
  }
  // Returns how many leading segments of a request are committed.
  size_t CountCached(const ReserveRequest& request) const { return FindCached(request).size(); }

  // Takes over what the worker says it holds, all or nothing; a named segment that no sequence
  // references is left out if it does not fit.
  //
  // REQUIRES: the store is empty.
  // Returns:  INVALID_ARGUMENT if anything else does not fit; the store is empty then.
  absl::Status Restore(std::span<const SequenceToRestore> sequences,
                       std::span<const SegmentToRestore> named = {});

  const KvGeometry& geometry() const { return geometry_; }
  const PrefixCounters& counters() const { return counters_; }
  const ExtentAllocator& allocator() const { return allocator_; }
  const SegmentDirectory& directory() const { return directory_; }
  const ClusterMap& clusters() const { return clusters_; }

 private:
  std::span<const std::byte> BytesOf(PageRun pages) const;
  absl::StatusOr<Reservation> RepeatReservation(const ReserveRequest& request) const;
  // Returns the longest leading run of the wanted segments that are committed.
  std::vector<ExtentRecord> FindCached(const ReserveRequest& request) const;
  absl::Status CheckNotInProgress(const ReserveRequest& request, size_t num_cached) const;
  // Adds extents for the segments behind the cached ones.
  absl::Status AllocateExtents(const ReserveRequest& request, Reservation* reservation);
  absl::Status ArenaFull(uint64_t sequence_id, uint64_t needed_pages, size_t num_extents) const;
  absl::StatusOr<std::vector<ExtentRecord>> TryCommit(uint64_t sequence_id,
                                                      std::span<const SegmentToCommit> segments);
  absl::Status CheckToCommit(uint64_t sequence_id, const SegmentToCommit& segment) const;
  absl::Status RestoreNamed(const SegmentToRestore& segment);
  absl::Status RestoreAll(std::span<const SequenceToRestore> sequences,
                          std::span<const SegmentToRestore> named);
  absl::Status RestoreSequence(const SequenceToRestore& sequence);
  // Takes the pages and the clusters of one extent, or nothing.
  absl::Status RestoreExtent(const ExtentRecord& extent);
  absl::Status RestoreImage(const ExtentRecord& extent);
  void Clear();

  const std::span<const std::byte> arena_;
  const KvGeometry geometry_;
  ExtentAllocator allocator_;
  SegmentDirectory directory_;
  ClusterMap clusters_;
  uint64_t last_extent_id_ = 0;
  common::Hash256 fingerprint_;
  const absl::flat_hash_set<common::SegmentName>* kept_ = nullptr;
  PrefixCounters counters_;
};

}  // namespace retroinfer::kvstore
