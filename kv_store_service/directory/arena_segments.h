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
#include "common/log/check.h"
#include "kv_store_service/arena/extent_allocator.h"
#include "kv_store_service/directory/image_reading.h"
#include "kv_store_service/directory/reservation_planner.h"
#include "kv_store_service/directory/segment_directory.h"

namespace retroinfer::kvstore {

// A segment or block to commit.
struct SegmentToCommit {
  uint64_t extent_id = 0;
  uint64_t token_begin = 0;
  uint32_t token_count = 0;
  std::optional<SegmentIdentity> identity = std::nullopt;  // set: other sequences may find it
};

// A sequence that a worker holds, as it tells a store that does not know.
struct DeclaredSequence {
  uint64_t sequence_id = 0;
  std::vector<ExtentRecord> extents;
  size_t num_cached = 0;  // leading ones that were cached when it reserved
};

// A named segment that a worker knows to be in the arena.
struct DeclaredSegment {
  ExtentRecord extent;
  SegmentIdentity identity;
  // A sequence that is declared later references it. Others are left out if they do not fit.
  bool is_referenced = false;
};

// A part of what a worker holds.
struct Declaration {
  std::vector<DeclaredSegment> segments;    // before the sequences that reference them
  std::vector<DeclaredSequence> sequences;  // after the segments of this part
};

// The extents of a sequence, in the order of its request.
struct Reservation {
  std::vector<ExtentRecord> extents;
  size_t num_cached = 0;  // leading ones that hold the wanted segments already
  // Not 0: nothing is reserved yet. So many leading segments would be shared, whose token ids are
  // to be compared first, and the request does not have them all.
  size_t num_to_compare = 0;
};

// Since the construction of the store.
struct PrefixCounters {
  uint64_t queries_tokens = 0;       // of named segments in reservations
  uint64_t hits_tokens = 0;          // of those, in cached segments
  uint64_t evictions = 0;            // of named segments
  uint64_t rows_queries_tokens = 0;  // that requests for rows looked for
  uint64_t rows_hits_tokens = 0;     // of those, in cached segments and blocks
};

// Sequences from here on are the store's own: segments that it reads back from the disk.
inline constexpr uint64_t kOwnSequences = uint64_t{1} << 63;

// Joins the extent allocator and the segment directory, so that each operation happens in both or
// in neither. Keeps named segments that no sequence references until their room is needed.
//
// ArenaSegments never touches a page: what must be read from the arena is read by the caller,
// between two calls and without a lock (image_reading.h).
//
// Threads: one at a time.
// Owns:    page numbers; no bytes of segments.
class ArenaSegments {
 public:
  // REQUIRES: CheckGeometry(geometry) is OK.
  ArenaSegments(uint32_t num_pages, const KvGeometry& geometry);

  // Names the model whose segments are found and committed from now on.
  void SetFingerprint(const common::Hash256& fingerprint) { fingerprint_ = fingerprint; }

  // Pins the segments of these names: they are evicted only where a reservation has no room
  // otherwise, as long as they take at most half of the arena.
  // REQUIRES: `names` outlives the object.
  void SetPinnedNames(const absl::flat_hash_set<common::SegmentName>* names) { pinned_ = names; }

  // References the longest leading run of named segments that are committed and reserves an extent
  // for each other element, all or nothing. Evicts unreferenced segments, the one released first
  // first, as far as it needs their room. The same request again returns the same extents.
  //
  // With ReserveRequest::made_by a generated segment of the same text does as well, and comes
  // before the exact one; behind it only generated ones do, and none of those that are reserved is
  // found by its exact name.
  //
  // With ReserveRequest::rows: references what a RowWalk finds; reserves nothing.
  //
  // A segment is shared only after its token ids were compared. Where the request has only names
  // and would be granted, the answer says of how many segments the ids are needed
  // (Reservation::num_to_compare), and nothing has changed. The store's own sequences
  // (kOwnSequences) go by name alone.
  //
  // Returns: INVALID_ARGUMENT for token counts that are no segment and names that are no chain;
  //          ALREADY_EXISTS if the sequence reserved something else; RESOURCE_EXHAUSTED (reason
  //          ARENA_FULL), with the numbers. Unless `compute_anyway`, ABORTED: with reason
  //          SEGMENT_IN_PROGRESS if another sequence computes the next named segment, with
  //          WAITS_FOR_DISK if it is being read from the disk, or if there is no room and
  //          WillFreePages().
  absl::StatusOr<Reservation> Reserve(const ReserveRequest& request, bool compute_anyway = false);

  // What may be evicted where a reservation has no room otherwise. Each value includes those above.
  enum class Evictable {
    kUnpinned,  // segments without references
    kPinned,    // segments of SetPinnedNames()
    kCached,    // cached segments of the reservation itself, from its end
  };

  // Reserves extents for named segments that the store reads back, for a sequence of its own, which
  // references `held` as well. Those are not evicted for its room, unless `evictable` is kCached:
  // then fewer of them may be referenced (Reservation::num_cached), and the others get extents to
  // be read into. Errors as Reserve(); ABORTED, too, if one of the segments is there or on its way
  // already.
  //
  // REQUIRES: sequence_id >= kOwnSequences and new; `missing` have identities, CheckTokens() is OK,
  //           and no two have the same name.
  absl::StatusOr<Reservation> ReserveOwn(uint64_t sequence_id, std::vector<ExtentRecord> held,
                                         std::span<const SegmentWanted> missing,
                                         Evictable evictable);

  // The first half of a commit: checks everything but the images, and returns those. On an error
  // nobody waits for these segments any more.
  //
  // Returns: NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION as CommitSegments in kv_store.proto.
  absl::StatusOr<std::vector<ImageToRead>> ImagesToCommit(
      uint64_t sequence_id, std::span<const SegmentToCommit> segments);
  // The second half, whatever has happened between: checks again and makes the images segments, all
  // or nothing; frees the tails of their extents. Returns the records. Committing the same again
  // changes nothing. Errors as of the first half, and those of `images`.
  absl::StatusOr<std::vector<ExtentRecord>> Commit(uint64_t sequence_id,
                                                   std::span<const SegmentToCommit> segments,
                                                   ReadImages images);

  // A segment that the store reads back has its index in its extent, and will have pages: checks
  // what Commit() does, and lets requests that take partial segments find it.
  //
  // REQUIRES: the sequence is the store's own; segment.identity.
  // Returns:  as ImagesToCommit(), and the error of `image`; INVALID_ARGUMENT if it has not
  //           `image_pages`.
  absl::Status MarkPartial(uint64_t sequence_id, const SegmentToCommit& segment,
                           const absl::StatusOr<SegmentImage>& image, uint64_t image_pages,
                           uint32_t part_bytes);
  // The rest of a partial segment does not come: nobody finds it, or waits for it, any more.
  void AbandonPartial(uint64_t extent_id) { directory_.AbandonWanted(extent_id); }

  // Frees all of a sequence that no other one uses, except named segments. Returns how many pages
  // that were; 0 if it is unknown.
  uint64_t Release(uint64_t sequence_id);
  // Releases all sequences of the worker. Returns how many pages are free by that.
  //
  // `unfinished` set: extents that are not committed are not freed but added to it, because the
  // worker may still write to them; they are out of use until Readmit().
  uint64_t ReleaseAll(std::vector<PageRun>* unfinished = nullptr);

  // Takes pages out of use that somebody else may still write to. REQUIRES: they are free.
  void Withhold(PageRun pages) {
    RI_CHECK(allocator_.Take(pages).ok());
    withheld_pages_ += pages.count;
  }
  // Gives pages that are out of use back.
  void Readmit(PageRun pages) {
    allocator_.Free(pages);
    withheld_pages_ -= pages.count;
  }

  // Keeps a named segment in the arena until Unpin(), besides the sequences.
  void Pin(uint64_t extent_id) { directory_.Pin(extent_id); }
  void Unpin(uint64_t extent_id) { directory_.Unpin(extent_id); }

  // Evicts the named segment if it is there and nothing uses it. Returns whether it did.
  bool EvictNamed(const common::SegmentName& name);

  // Whether pages will come free although no sequence ends: segments are on their way from or to
  // the disk, or pages are withheld for an expired lease.
  bool WillFreePages() const {
    return withheld_pages_ > 0 || directory_.pinned_pages() > 0 ||
           directory_.HasSequenceFrom(kOwnSequences);
  }

  // Returns the longest leading run of the wanted segments that are committed.
  std::vector<ExtentRecord> FindCached(const ReserveRequest& request) const {
    return FindLeading(request, /*waits=*/false).cached;
  }

  // The first half of a declaration: the images of its extents that are not known yet. What cannot
  // be a segment inside the arena is left out; Declare() refuses it.
  std::vector<ImageToRead> ImagesToDeclare(const Declaration& part) const;
  // The second half: takes over what the worker says it holds. A segment that is not referenced is
  // left out if it does not fit.
  //
  // Returns: INVALID_ARGUMENT if anything else does not fit; what was taken over before in this
  //          part stays, for ReleaseAll() to end.
  absl::Status Declare(const Declaration& part, ReadImages images);

  const KvGeometry& geometry() const { return geometry_; }
  const PrefixCounters& counters() const { return counters_; }
  const ExtentAllocator& allocator() const { return allocator_; }
  const SegmentDirectory& directory() const { return directory_; }
  // Entries of the cluster mapping table: clusters of all committed segments.
  uint64_t num_clusters() const { return num_clusters_; }
  uint64_t withheld_pages() const { return withheld_pages_; }

 private:
  absl::StatusOr<Reservation> RepeatReservation(const ReserveRequest& request) const;
  absl::StatusOr<Reservation> ReserveRows(const ReserveRequest& request, bool compute_anyway);
  // What leads a request: committed segments, and what the next one waits for.
  struct Found {
    std::vector<ExtentRecord> cached;
    const ExtentRecord* in_progress = nullptr;
  };
  // Finds the longest leading run of the wanted segments that are committed, by their names and,
  // where the request has them, their token ids. `waits`: and what is in progress behind them.
  Found FindLeading(const ReserveRequest& request, bool waits) const;
  // Returns the committed segment of just the wanted name, or nothing.
  const ExtentRecord* FindExact(const SegmentWanted& wanted, uint64_t token_begin) const;
  // Whether an extent in progress will hold just the wanted segment, and has its index.
  bool IsPartial(const ExtentRecord& extent, const SegmentWanted& wanted,
                 uint64_t token_begin) const;
  static absl::Status InProgress(const common::SegmentName& name, const ExtentRecord& other,
                                 uint64_t sequence_id);
  // Plans extents for the segments behind the cached ones, of which fewer are left in `cached` if
  // there is no room otherwise and `evictable` is kCached. `may_wait`: says that pages will come
  // free, rather than evict what is pinned or cached.
  absl::StatusOr<ReservationPlan> PlanExtents(const ReserveRequest& request, bool may_wait,
                                              Evictable evictable,
                                              std::vector<ExtentRecord>& cached) const;
  // Evicts and allocates as planned; adds the extents to the reservation.
  void Allocate(const ReserveRequest& request, const ReservationPlan& plan,
                Reservation* reservation);
  // Notes in those extents which segments they are reserved for.
  static void NoteWanted(const ReserveRequest& request, Reservation* reservation);
  static void NoteWanted(const SegmentIdentity& wanted, ExtentRecord* extent);
  void CountQuery(const ReserveRequest& request, size_t num_cached);
  absl::Status ArenaFull(uint64_t sequence_id, uint64_t needed_pages, size_t num_extents) const;
  absl::StatusOr<std::vector<ImageToRead>> CheckCommit(
      uint64_t sequence_id, std::span<const SegmentToCommit> segments) const;
  absl::Status CheckToCommit(uint64_t sequence_id, const SegmentToCommit& segment) const;
  // Nobody may wait for what will not come.
  void AbandonWanted(uint64_t sequence_id, std::span<const SegmentToCommit> segments);
  bool CanBeRead(const ExtentRecord& extent) const;
  absl::Status DeclareSegment(const DeclaredSegment& segment, const ReadImages& images);
  absl::Status DeclareSequence(const DeclaredSequence& sequence, const ReadImages& images);
  // Takes the pages of extents that are not known yet, all or nothing.
  absl::Status TakeExtents(const DeclaredSequence& sequence, const ReadImages& images);
  // Takes the pages of one extent whose image fits, or nothing.
  absl::Status TakeExtent(const ExtentRecord& extent, const ReadImages& images);
  absl::Status CheckImage(const ExtentRecord& extent, const ReadImages& images) const;
  // Gives back the pages of an extent that has left the directory.
  void Free(const ExtentRecord& extent);

  const KvGeometry geometry_;
  ExtentAllocator allocator_;
  SegmentDirectory directory_;
  uint64_t num_clusters_ = 0;
  uint64_t last_extent_id_ = 0;
  uint64_t withheld_pages_ = 0;
  common::Hash256 fingerprint_;
  const absl::flat_hash_set<common::SegmentName>* pinned_ = nullptr;
  PrefixCounters counters_;
};

}  // namespace retroinfer::kvstore
