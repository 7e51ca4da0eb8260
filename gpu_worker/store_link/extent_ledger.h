// What the worker holds in the arena, as the store has acknowledged it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/kv/extent.h"
#include "common/kv/named_segment.h"

namespace retroinfer {

// One extent of a sequence.
struct LedgerExtent {
  Extent extent;
  std::optional<uint64_t> token_begin;                        // of its segment; set when committed
  std::shared_ptr<const SegmentIdentity> identity = nullptr;  // set: committed and found by name
};

// The record from which a restarted store is told everything again: the extents of the live
// sequences, and the named segments of those that ended, as long as nothing else was granted their
// pages, so that their bytes are still in the arena whether or not the store evicted them.
//
// Threads: one at a time.
class ExtentLedger {
 public:
  // Notes the extents of a sequence; replaces what was known of it. The cached ones hold the wanted
  // segments, or of rows whatever the store has: the name of one that was not wanted by name is
  // known if a sequence of this ledger committed it and it was not forgotten since; without a name
  // only its sequences hold it.
  //
  // REQUIRES: not more extents than wanted segments, if there are no rows.
  void Reserve(const ReserveRequest& request, const std::vector<Extent>& extents);
  // Notes that an extent is committed and now has `num_pages` pages; unknown ones are ignored. With
  // an identity it is found by name.
  void Commit(uint64_t sequence_id, uint64_t extent_id, uint64_t token_begin, uint32_t num_pages,
              std::shared_ptr<const SegmentIdentity> identity = nullptr);
  // Forgets a sequence, but not its named segments.
  void Release(uint64_t sequence_id);
  // Forgets the named segments of ended sequences, also of those that end later: the store writes
  // into the arena by itself, so that nobody here knows whether their bytes are still there.
  void StopRetaining();

  // Returns the extent, or nothing.
  const LedgerExtent* Find(uint64_t sequence_id, uint64_t extent_id) const;
  // All live sequences with their extents in the order of the reservation.
  const std::map<uint64_t, std::vector<LedgerExtent>>& sequences() const { return sequences_; }
  // The named segments of live sequences, each once. Valid until the next change.
  std::vector<const LedgerExtent*> ReferencedSegments() const;
  // The other named segments, in the order of their release. Valid until the next change.
  std::vector<const LedgerExtent*> RetainedSegments() const;

 private:
  struct Retained {
    LedgerExtent entry;
    uint64_t released = 0;  // order
  };

  // The name of what an extent holds, as long as something here has it.
  struct Known {
    std::weak_ptr<const SegmentIdentity> identity;
    PageId first_page = 0;
  };

  // Forgets the segments of ended sequences whose pages `extent` has.
  void DropRetained(const Extent& extent);
  // The identity of what the store returned for a request.
  std::shared_ptr<const SegmentIdentity> IdentityOf(const ReserveRequest& request, size_t index,
                                                    const Extent& extent) const;
  void NoteKnown(const Extent& extent, const std::shared_ptr<const SegmentIdentity>& identity);
  // The store shares as a whole what some sequences were given when only its index was there: their
  // entries say the same, because an extent that is told twice must be told alike.
  void NoteWhole(const LedgerExtent& whole);
  void ForgetPartial(uint64_t sequence_id);
  // Of an extent among those of its sequence.
  std::optional<size_t> PlaceOf(uint64_t sequence_id, uint64_t extent_id) const;

  std::map<uint64_t, std::vector<LedgerExtent>> sequences_;
  // By sequence: the place of each extent in that vector.
  absl::flat_hash_map<uint64_t, absl::flat_hash_map<uint64_t, size_t>> places_;
  std::set<std::pair<uint64_t, uint64_t>> partial_;  // extents, and the sequences that have them so
  absl::flat_hash_map<uint64_t, Known> known_;       // by extent id; some are expired
  size_t known_max_ = 1024;                          // expired ones are dropped when there are more
  std::map<PageId, Retained> retained_;              // by first page; no two overlap
  uint64_t last_release_ = 0;
  bool retains_ = true;
};

}  // namespace retroinfer
