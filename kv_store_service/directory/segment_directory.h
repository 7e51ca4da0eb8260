// Knows every extent, what is in it, and which sequence references it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// An extent of the arena: reserved, then committed with a segment.
struct ExtentRecord {
  uint64_t id = 0;
  PageRun pages;
  uint64_t sequence_id = 0;
  uint32_t reserved_tokens = 0;
  std::optional<uint64_t> token_begin;  // of its segment; set when committed

  bool committed() const { return token_begin.has_value(); }
};

// Threads: one at a time.
// Owns:    the records; pages belong to the allocator.
class SegmentDirectory {
 public:
  // Adds a sequence with its extents.
  //
  // REQUIRES: all records name `sequence_id`; their ids are new.
  // Returns:  ALREADY_EXISTS if the sequence is known; nothing has changed then.
  absl::Status AddSequence(uint64_t sequence_id, const std::vector<ExtentRecord>& extents);

  // Returns the extents of a sequence in the order of their reservation; nothing if unknown. Valid
  // until the sequence is removed.
  const std::vector<uint64_t>* FindSequence(uint64_t sequence_id) const;

  // Returns the record, or nothing. Valid until its sequence is removed.
  const ExtentRecord* FindExtent(uint64_t extent_id) const;

  // Returns the committed extent of the sequence that has a token of [begin, begin + count), or
  // nothing.
  const ExtentRecord* FindOverlap(uint64_t sequence_id, uint64_t token_begin,
                                  uint32_t token_count) const;

  // Records that the extent holds the segment that begins at `token_begin` and keeps only its first
  // `num_pages` pages. Returns the pages that it no longer has; possibly none (count 0).
  //
  // REQUIRES: the extent exists, is not committed, and has at least num_pages > 0 pages.
  PageRun Commit(uint64_t extent_id, uint64_t token_begin, uint32_t num_pages);

  // Forgets a sequence. Returns the extents that nothing references any more, for the caller to
  // free; none if the sequence is unknown.
  std::vector<ExtentRecord> RemoveSequence(uint64_t sequence_id);

  // Returns up to `limit` records with an id above `after`, in ascending order.
  std::vector<const ExtentRecord*> List(uint64_t after, size_t limit) const;

  size_t num_sequences() const { return sequences_.size(); }
  size_t num_extents() const { return extents_.size(); }
  size_t num_committed() const { return num_committed_; }

 private:
  std::map<uint64_t, ExtentRecord> extents_;             // by extent id
  std::map<uint64_t, std::vector<uint64_t>> sequences_;  // sequence id -> extent ids
  size_t num_committed_ = 0;
};

}  // namespace retroinfer::kvstore
