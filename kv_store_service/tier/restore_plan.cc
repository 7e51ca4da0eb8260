#include "kv_store_service/tier/restore_plan.h"

#include <algorithm>
#include <optional>

#include "kv_store_service/directory/row_walk.h"
#include "kv_store_service/directory/segment_checks.h"

namespace retroinfer::kvstore {
namespace {

// Adds a candidate to the plan. Returns false if the plan ends before the candidate.
bool Add(const RowCandidate& candidate, const TierRows& source, RestorePlan* plan) {
  switch (candidate.place) {
    case RowCandidate::Place::kArena:
      plan->held.push_back(candidate.extent_id);
      return true;
    case RowCandidate::Place::kInProgress:
      return false;
    case RowCandidate::Place::kDisk:
      break;
  }
  const std::optional<SegmentRecord> record = source.RecordOf(candidate.name);
  if (!record.has_value() || !CheckTokens(record->num_tokens).ok() ||
      !CheckTokenBegin(record->token_begin, record->num_tokens).ok()) {
    return false;
  }
  plan->records.push_back(*record);
  return true;
}

// Returns the candidate for the request's segment `index`, which begins at `token_begin`; nothing
// if there is none in the arena or on the disk.
std::optional<RowCandidate> Find(const ReserveRequest& request, size_t index, uint64_t token_begin,
                                 const std::optional<HeldSegment>& before, const TierRows& source) {
  const SegmentWanted& wanted = request.segments[index];
  // Generated segments before exact ones, as ArenaSegments::FindLeading() does.
  if (const auto parent = GeneratedParent(request, index, before)) {
    const auto generated = FindGenerated(source, *parent, wanted, token_begin, *request.made_by);
    if (generated.has_value()) return generated;
  }
  if (!MayBeFoundByName(wanted, before)) return std::nullopt;
  const SegmentIdentity& identity = *wanted.identity;
  const auto named = source.Named(identity.name);
  const bool is_it = named.has_value() && named->token_begin.value_or(token_begin) == token_begin &&
                     named->num_tokens == wanted.num_tokens &&
                     named->salt_hash == identity.salt_hash &&
                     named->provenance == identity.provenance &&
                     (named->token_ids.empty() || identity.token_ids.empty() ||
                      std::ranges::equal(named->token_ids, identity.token_ids));
  return is_it ? named : std::nullopt;
}

}  // namespace

RestorePlan PlanSegments(const ReserveRequest& request, const TierRows& source) {
  RestorePlan plan;
  uint64_t token_begin = request.token_begin;
  std::optional<HeldSegment> before;
  for (size_t i = 0; i < request.segments.size() && request.segments[i].identity.has_value(); ++i) {
    const auto found = Find(request, i, token_begin, before, source);
    if (!found.has_value()) break;
    // The request will take it as it is; what follows may have to be read as well.
    const bool is_taken = request.takes_partial && source.IsPartial(*found);
    if (!is_taken && !Add(*found, source, &plan)) break;
    before = {found->name, found->provenance.has_value()};
    token_begin += found->num_tokens;
  }
  return plan;
}

RestorePlan PlanRows(const ReserveRequest& request, const TierRows& source) {
  RestorePlan plan;
  RowWalk walk(*request.rows, request.made_by, source);
  while (const auto piece = walk.Next()) {
    if (!Add(*piece, source, &plan)) break;
  }
  return plan;
}

}  // namespace retroinfer::kvstore
