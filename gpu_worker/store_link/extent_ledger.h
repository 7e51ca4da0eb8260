// What the worker holds in the arena, as the store has acknowledged it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/kv/extent.h"

namespace retroinfer {

// One extent of a sequence.
struct LedgerExtent {
  Extent extent;
  std::optional<uint64_t> token_begin;  // of its segment; set when committed
};

// The record from which a restarted store is told everything again.
//
// Threads: one at a time.
class ExtentLedger {
 public:
  // Notes the extents of a sequence; replaces what was known of it.
  void Reserve(uint64_t sequence_id, const std::vector<Extent>& extents);
  // Notes that an extent is committed and now has `num_pages` pages; unknown ones are ignored.
  void Commit(uint64_t sequence_id, uint64_t extent_id, uint64_t token_begin, uint32_t num_pages);
  // Forgets a sequence.
  void Release(uint64_t sequence_id);

  // Returns the extent, or nothing.
  const LedgerExtent* Find(uint64_t sequence_id, uint64_t extent_id) const;
  // All live sequences with their extents in the order of the reservation.
  const std::map<uint64_t, std::vector<LedgerExtent>>& sequences() const { return sequences_; }

 private:
  std::map<uint64_t, std::vector<LedgerExtent>> sequences_;
};

}  // namespace retroinfer
