// Knows every extent, what is in it, its name, what it follows, and which sequences reference it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/kv/named_segment.h"
#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// What a committed segment is found by.
struct SegmentKey {
  common::Hash256 fingerprint;  // of the model that wrote it
  SegmentIdentity identity;
};

// An extent of the arena: reserved, then committed with a segment.
struct ExtentRecord {
  uint64_t id = 0;
  PageRun pages;
  uint64_t sequence_id = 0;  // that reserved it
  uint32_t reserved_tokens = 0;
  std::optional<uint64_t> token_begin;  // of its segment; set when committed
  uint32_t references = 0;              // sequences
  // Of the segment it is reserved for, without token ids.
  std::shared_ptr<const SegmentIdentity> wanted = nullptr;
  std::shared_ptr<const SegmentKey> key = nullptr;  // set: committed and found by its name
  uint64_t unreferenced_since = 0;  // order of release; of named ones without references
  // Set while the store reads the pages of the segment, whose index is there: what the extent will
  // hold. Requests that take such segments find it (ReserveRequest::takes_partial).
  std::shared_ptr<const SegmentKey> partial = nullptr;
  uint64_t partial_begin = 0;  // its first token
  uint32_t part_bytes = 0;     // of its image's parts, which come one by one

  bool committed() const { return token_begin.has_value(); }
  // What it is found as.
  const SegmentKey* found_as() const { return key != nullptr ? key.get() : partial.get(); }
};

// Whether a segment or block is found as what follows its parent, besides by its name: generated
// KV, and exact blocks that are not full. What else follows follows from the tokens.
inline bool IsFoundByParent(const SegmentIdentity& identity, uint32_t num_tokens) {
  return identity.provenance.has_value() || num_tokens < kDenseBlockTokens;
}

// A named segment without references.
struct UnreferencedSegment {
  uint64_t extent_id = 0;
  uint32_t num_pages = 0;
  uint64_t since = 0;  // ExtentRecord::unreferenced_since
};

// The extents of one sequence.
struct SequenceRecord {
  std::vector<uint64_t> extent_ids;  // in the order of the reservation
  size_t num_cached = 0;             // leading ones that held a segment when it reserved
  // The same extents, and the committed ones of them by their first token.
  absl::flat_hash_set<uint64_t> id_set;
  std::map<uint64_t, uint64_t> by_begin;
};

// A named segment has one record, whatever number of sequences reference it, and stays when the
// last one goes: unreferenced, in the order of release, until Evict().
//
// Threads: one at a time.
// Owns:    the records; pages belong to the allocator.
class SegmentDirectory {
 public:
  // Adds a sequence with its extents: references to the first `num_shared`, which are known and
  // named, then new ones, which it owns.
  //
  // REQUIRES: the first `num_shared` are known and found_as() something; the others have this
  //           `sequence_id`.
  // Returns:  ALREADY_EXISTS if the sequence is known; nothing has changed then.
  absl::Status AddSequence(uint64_t sequence_id, const std::vector<ExtentRecord>& extents,
                           size_t num_shared = 0);
  // As above; references each extent that is known and adds the others. `num_cached`: for the
  // sequence's record.
  absl::Status DeclareSequence(uint64_t sequence_id, const std::vector<ExtentRecord>& extents,
                               size_t num_cached);

  // Adds a named segment that no sequence references yet; it counts as just released.
  //
  // REQUIRES: it is committed, has a key, and its id and name are new.
  void AddNamed(ExtentRecord segment);

  // Returns the sequence; nothing if unknown. Valid until it is removed.
  const SequenceRecord* FindSequence(uint64_t sequence_id) const;

  // Returns the record, or nothing. Valid until it is removed.
  const ExtentRecord* FindExtent(uint64_t extent_id) const;

  // Returns the committed segment of that name, or nothing.
  const ExtentRecord* FindNamed(const common::SegmentName& name) const;

  // Returns the extent that is reserved for the segment of that name and not committed; the first
  // of several; or nothing.
  const ExtentRecord* FindInProgress(const common::SegmentName& name) const;

  // Returns what follows `parent` and IsFoundByParent(), committed or reserved for it, the newest
  // first. Cost: at most kChildrenMax are looked at, so that no parent makes others wait.
  std::vector<const ExtentRecord*> FindChildren(const common::SegmentName& parent) const;
  static constexpr size_t kChildrenMax = 64;

  // Whether the sequence references the extent.
  bool References(uint64_t sequence_id, uint64_t extent_id) const;

  // Returns the committed extent of the sequence that has a token of [begin, begin + count), or
  // nothing.
  const ExtentRecord* FindOverlap(uint64_t sequence_id, uint64_t token_begin,
                                  uint32_t token_count) const;

  // Records that the extent holds the segment that begins at `token_begin` and keeps only its first
  // `num_pages` pages. With a key it is found by that name from now on, unless another one is.
  // Returns the pages that it no longer has; possibly none (count 0).
  //
  // REQUIRES: the extent exists, is not committed, and has at least num_pages > 0 pages.
  PageRun Commit(uint64_t extent_id, uint64_t token_begin, uint32_t num_pages,
                 std::shared_ptr<const SegmentKey> key = nullptr);

  // Records that the extent has the index of the segment of `key` and keeps only its first
  // `num_pages` pages; its pages come part by part. Returns the pages that it no longer has.
  //
  // REQUIRES: as Commit().
  PageRun MarkPartial(uint64_t extent_id, uint64_t token_begin, uint32_t num_pages,
                      uint32_t part_bytes, std::shared_ptr<const SegmentKey> key);

  // Lets others reserve the segment that the extent was reserved for, if it is known. Nobody finds
  // it any more if it is partial.
  void AbandonWanted(uint64_t extent_id);

  // Forgets a sequence. Returns the extents that nothing references or finds any more, for the
  // caller to free; none if the sequence is unknown. Named segments stay; of those that lose their
  // last reference the last one in the sequence counts as released first, so that a prefix is
  // evicted from its end.
  std::vector<ExtentRecord> RemoveSequence(uint64_t sequence_id);

  // Keeps a named segment for something that is no sequence, like a reference; and ends that.
  void Pin(uint64_t extent_id);
  void Unpin(uint64_t extent_id);
  // Whether a sequence with an id of at least `sequence_id` is known.
  bool HasSequenceFrom(uint64_t sequence_id) const {
    return sequences_.lower_bound(sequence_id) != sequences_.end();
  }

  // Named segments without references, the one released first first.
  std::vector<const ExtentRecord*> Unreferenced() const;
  // The same, by their first pages.
  const absl::btree_map<PageId, UnreferencedSegment>& UnreferencedByPage() const {
    return unreferenced_by_page_;
  }
  // Forgets one of them. Returns its record, for the caller to free.
  //
  // REQUIRES: it is named and has no references.
  ExtentRecord Evict(uint64_t extent_id);

  // Returns up to `limit` records with an id above `after`, in ascending order.
  std::vector<const ExtentRecord*> List(uint64_t after, size_t limit) const;
  std::vector<uint64_t> SequenceIds() const;

  size_t num_sequences() const { return sequences_.size(); }
  size_t num_extents() const { return extents_.size(); }
  size_t num_committed() const { return num_committed_; }
  size_t num_named() const { return by_name_.size(); }
  uint64_t named_pages() const { return named_pages_; }
  uint64_t unreferenced_pages() const { return unreferenced_pages_; }
  uint64_t pinned_pages() const { return pinned_pages_; }
  uint64_t num_unpinned() const { return num_unpinned_; }  // Unpin() so far

 private:
  ExtentRecord& AddExtent(const ExtentRecord& extent);
  void AddChild(const SegmentIdentity& identity, const ExtentRecord& extent);
  void RemoveChild(const SegmentIdentity& identity, uint64_t extent_id);
  void Reference(ExtentRecord& extent);
  void Unreference(ExtentRecord& extent);
  ExtentRecord Remove(uint64_t extent_id);

  std::map<uint64_t, ExtentRecord> extents_;                        // by extent id
  std::map<uint64_t, SequenceRecord> sequences_;                    // by sequence id
  absl::flat_hash_map<common::SegmentName, uint64_t> by_name_;      // committed: extent id
  absl::flat_hash_map<common::SegmentName, uint64_t> in_progress_;  // reserved: extent id
  // By parent: extent ids, which grow with time.
  absl::flat_hash_map<common::SegmentName, std::set<uint64_t>> children_;
  std::map<uint64_t, uint64_t> unreferenced_;  // unreferenced_since -> extent id
  absl::btree_map<PageId, UnreferencedSegment> unreferenced_by_page_;
  uint64_t last_release_ = 0;
  size_t num_committed_ = 0;
  uint64_t named_pages_ = 0;
  uint64_t unreferenced_pages_ = 0;
  uint64_t pinned_pages_ = 0;
  uint64_t num_unpinned_ = 0;
};

}  // namespace retroinfer::kvstore
