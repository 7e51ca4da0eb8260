// What an arena's directory has for a walk along rows.
#pragma once

#include <optional>
#include <vector>

#include "common/hash/segment_name.h"
#include "kv_store_service/directory/row_walk.h"
#include "kv_store_service/directory/segment_directory.h"

namespace retroinfer::kvstore {

// Segments and blocks of one model: committed ones, and with `in_progress` those that extents are
// reserved for, but for extents of sequence `own`.
//
// Threads: one at a time. Owns nothing; candidates are valid until the directory changes.
class ArenaRows final : public RowSource {
 public:
  ArenaRows(const SegmentDirectory& directory, const common::Hash256& fingerprint, bool in_progress,
            uint64_t own = 0)
      : directory_(directory), fingerprint_(fingerprint), in_progress_(in_progress), own_(own) {}

  std::optional<RowCandidate> Named(const common::SegmentName& name) const override {
    const ExtentRecord* record = directory_.FindNamed(name);
    if (record == nullptr && in_progress_) record = directory_.FindInProgress(name);
    return record == nullptr ? std::nullopt : CandidateOf(*record);
  }
  std::vector<RowCandidate> Children(const common::SegmentName& parent) const override {
    std::vector<RowCandidate> children;
    for (const ExtentRecord* record : directory_.FindChildren(parent)) {
      if (auto candidate = CandidateOf(*record)) children.push_back(*std::move(candidate));
    }
    return children;
  }

 private:
  std::optional<RowCandidate> CandidateOf(const ExtentRecord& record) const {
    const bool is_committed = record.key != nullptr;
    if (is_committed ? record.key->fingerprint != fingerprint_
                     : !in_progress_ || record.wanted == nullptr || record.sequence_id == own_) {
      return std::nullopt;
    }
    const SegmentIdentity& identity = is_committed ? record.key->identity : *record.wanted;
    RowCandidate candidate;
    candidate.place = is_committed ? RowCandidate::Place::kArena : RowCandidate::Place::kInProgress;
    candidate.name = identity.name;
    candidate.salt_hash = identity.salt_hash;
    candidate.provenance = identity.provenance;
    if (is_committed) candidate.token_begin = record.token_begin;
    candidate.num_tokens = record.reserved_tokens;
    candidate.token_ids = identity.token_ids;
    candidate.extent_id = record.id;
    return candidate;
  }

  const SegmentDirectory& directory_;
  const common::Hash256& fingerprint_;
  const bool in_progress_;
  const uint64_t own_;
};

}  // namespace retroinfer::kvstore
