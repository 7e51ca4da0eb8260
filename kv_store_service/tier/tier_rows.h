// The segments and blocks of arena and disk, as the source of a walk along rows.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kv_store_service/directory/arena_rows.h"
#include "kv_store_service/directory/row_walk.h"
#include "kv_store_service/tier/durable_tier.h"

namespace retroinfer::kvstore {

// Segments and blocks of one model: committed or in progress in the arena, and those that are on
// the disk only, whose token ids are not known.
//
// Threads: one at a time. Owns nothing; all arguments outlive the object.
class TierRows final : public RowSource {
 public:
  // `own`: as of ArenaRows.
  TierRows(const SegmentDirectory& directory, const common::Hash256& fingerprint, DurableTier* tier,
           uint64_t own)
      : directory_(directory),
        arena_(directory, fingerprint, /*in_progress=*/true, own),
        fingerprint_(fingerprint),
        tier_(*tier) {}

  std::optional<RowCandidate> Named(const common::SegmentName& name) const override {
    std::optional<RowCandidate> found = arena_.Named(name);
    if (found.has_value()) return found;
    const auto record = tier_.Peek(name);
    if (record.has_value() && record->fingerprint_hash == fingerprint_)
      found = CandidateOf(*record);
    return found;
  }
  std::vector<RowCandidate> Children(const common::SegmentName& parent) const override {
    std::vector<RowCandidate> children = arena_.Children(parent);
    absl::flat_hash_set<common::SegmentName> known;
    for (const RowCandidate& child : children) known.insert(child.name);
    for (const SegmentRecord& record : tier_.Children(parent)) {
      if (record.fingerprint_hash != fingerprint_ || known.contains(record.name)) continue;
      children.push_back(CandidateOf(record));
    }
    return children;
  }

  // Whether the candidate is a segment in the arena of which only the index is there.
  bool IsPartial(const RowCandidate& candidate) const {
    if (candidate.place != RowCandidate::Place::kInProgress) return false;
    const ExtentRecord* extent = directory_.FindExtent(candidate.extent_id);
    return extent != nullptr && extent->partial != nullptr;
  }
  // Returns the record of the segment or block on the disk; nothing if there is none.
  std::optional<SegmentRecord> RecordOf(const common::SegmentName& name) const {
    return tier_.Peek(name);
  }

 private:
  static RowCandidate CandidateOf(const SegmentRecord& record) {
    RowCandidate candidate;
    candidate.place = RowCandidate::Place::kDisk;
    candidate.name = record.name;
    candidate.salt_hash = record.salt_hash;
    candidate.provenance = record.provenance;
    candidate.token_begin = record.token_begin;
    candidate.num_tokens = record.num_tokens;
    return candidate;
  }

  const SegmentDirectory& directory_;
  const ArenaRows arena_;
  const common::Hash256& fingerprint_;
  DurableTier& tier_;
};

}  // namespace retroinfer::kvstore
