// What a request finds in the arena: the half of ArenaSegments that changes nothing but counters.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "kv_store_service/directory/arena_rows.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/directory/row_walk.h"

namespace retroinfer::kvstore {
namespace {

// Whether a committed segment is the wanted one, as far as the request says what it wants.
bool IsWanted(const SegmentIdentity& committed, const SegmentIdentity& wanted) {
  return committed.name == wanted.name && committed.parent == wanted.parent &&
         committed.salt_hash == wanted.salt_hash && committed.provenance == wanted.provenance &&
         (wanted.token_ids.empty() || committed.token_ids == wanted.token_ids);
}

std::optional<HeldSegment> LastOf(std::span<const ExtentRecord> cached) {
  if (cached.empty()) return std::nullopt;
  const SegmentIdentity& identity = cached.back().found_as()->identity;
  return HeldSegment{identity.name, identity.provenance.has_value()};
}

absl::Status HasOtherExtents(uint64_t sequence_id) {
  return absl::AlreadyExistsError(
      absl::StrCat("sequence ", sequence_id, " has already reserved other extents"));
}

}  // namespace

absl::Status ArenaSegments::InProgress(const common::SegmentName& name, const ExtentRecord& other,
                                       uint64_t sequence_id) {
  return common::WithReason(
      absl::AbortedError(absl::StrCat("segment ", name.ToHex(), " for sequence ", sequence_id,
                                      " is being computed by sequence ", other.sequence_id,
                                      "; try again when it is committed")),
      other.sequence_id < kOwnSequences ? kSegmentInProgressReason : kWaitsForDiskReason,
      {{"sequence_id", absl::StrCat(other.sequence_id)}, {"segment", name.ToHex()}});
}

absl::StatusOr<Reservation> ArenaSegments::RepeatReservation(const ReserveRequest& request) const {
  const SequenceRecord& known = *directory_.FindSequence(request.sequence_id);
  Reservation reservation;
  reservation.num_cached = known.num_cached;
  for (const uint64_t id : known.extent_ids) {
    reservation.extents.push_back(*directory_.FindExtent(id));
  }
  const std::vector<ExtentRecord>& extents = reservation.extents;
  if (request.rows.has_value()) {
    uint64_t num_tokens = 0;
    for (const ExtentRecord& extent : extents) num_tokens += extent.reserved_tokens;
    if (known.num_cached == extents.size() && num_tokens <= request.rows->token_ids.size() &&
        extents.front().token_begin == request.rows->token_begin) {
      return reservation;
    }
    return HasOtherExtents(request.sequence_id);
  }
  const bool complete = request.cached_only ? extents.size() == known.num_cached &&
                                                  extents.size() <= request.segments.size()
                                            : extents.size() == request.segments.size();
  if (complete && std::equal(extents.begin(), extents.end(), request.segments.begin(),
                             [](const ExtentRecord& extent, const SegmentWanted& wanted) {
                               return extent.reserved_tokens == wanted.num_tokens;
                             })) {
    return reservation;
  }
  return HasOtherExtents(request.sequence_id);
}

ArenaSegments::Found ArenaSegments::FindLeading(const ReserveRequest& request, bool waits) const {
  const ArenaRows source(directory_, fingerprint_, waits);
  Found found;
  uint64_t token_begin = request.token_begin;
  for (size_t i = 0; i < request.segments.size(); ++i) {
    const SegmentWanted& wanted = request.segments[i];
    if (!wanted.identity.has_value()) break;
    const std::optional<HeldSegment> before = LastOf(found.cached);
    const ExtentRecord* next = nullptr;
    // Generated KV first: a conversation goes on as it was held, whoever has computed its text
    // since.
    if (const auto parent = GeneratedParent(request, i, before)) {
      const auto generated = FindGenerated(source, *parent, wanted, token_begin, *request.made_by);
      if (generated.has_value()) next = directory_.FindExtent(generated->extent_id);
    }
    if (next == nullptr && MayBeFoundByName(wanted, before)) {
      next = FindExact(wanted, token_begin);
      if (next == nullptr && waits) next = directory_.FindInProgress(wanted.identity->name);
    }
    const bool is_taken =
        next != nullptr &&
        (next->key != nullptr || (request.takes_partial && IsPartial(*next, wanted, token_begin)));
    if (next != nullptr && !is_taken) found.in_progress = next;
    if (!is_taken) break;
    found.cached.push_back(*next);
    token_begin += wanted.num_tokens;
  }
  return found;
}

const ExtentRecord* ArenaSegments::FindExact(const SegmentWanted& wanted,
                                             uint64_t token_begin) const {
  const ExtentRecord* found = directory_.FindNamed(wanted.identity->name);
  const bool is_it = found != nullptr && found->token_begin == token_begin &&
                     found->reserved_tokens == wanted.num_tokens &&
                     found->key->fingerprint == fingerprint_ &&
                     IsWanted(found->key->identity, *wanted.identity);
  return is_it ? found : nullptr;
}

bool ArenaSegments::IsPartial(const ExtentRecord& extent, const SegmentWanted& wanted,
                              uint64_t token_begin) const {
  return extent.partial != nullptr && extent.partial_begin == token_begin &&
         extent.reserved_tokens == wanted.num_tokens &&
         extent.partial->fingerprint == fingerprint_ &&
         IsWanted(extent.partial->identity, *wanted.identity);
}

void ArenaSegments::NoteWanted(const SegmentIdentity& wanted, ExtentRecord* extent) {
  SegmentIdentity names = wanted;
  names.token_ids = {};
  extent->wanted = std::make_shared<const SegmentIdentity>(std::move(names));
}

void ArenaSegments::NoteWanted(const ReserveRequest& request, Reservation* reservation) {
  const std::optional<HeldSegment> last =
      LastOf(std::span(reservation->extents).first(reservation->num_cached));
  for (size_t i = reservation->num_cached; i < request.segments.size(); ++i) {
    // Behind generated KV the sequence computes something else than the exact segment.
    if (!MayBeFoundByName(request.segments[i], last)) continue;
    NoteWanted(*request.segments[i].identity, &reservation->extents[i]);
  }
}

absl::StatusOr<Reservation> ArenaSegments::ReserveRows(const ReserveRequest& request,
                                                       bool compute_anyway) {
  const RowsWanted& rows = *request.rows;
  const ArenaRows source(directory_, fingerprint_, !compute_anyway && !request.cached_only,
                         rows.sequence_id);
  RowWalk walk(rows, request.made_by, source);
  Reservation reservation;
  while (const auto piece = walk.Next()) {
    const ExtentRecord& extent = *directory_.FindExtent(piece->extent_id);
    if (piece->place == RowCandidate::Place::kInProgress) {
      return InProgress(piece->name, extent, request.sequence_id);
    }
    reservation.extents.push_back(extent);
  }
  reservation.num_cached = reservation.extents.size();
  counters_.rows_queries_tokens += rows.token_ids.size();
  counters_.rows_hits_tokens += walk.num_tokens();
  if (reservation.extents.empty()) return reservation;
  RI_CHECK(directory_.AddSequence(request.sequence_id, reservation.extents, reservation.num_cached)
               .ok());
  return reservation;
}

void ArenaSegments::CountQuery(const ReserveRequest& request, size_t num_cached) {
  for (size_t i = 0; i < request.segments.size() && request.sequence_id < kOwnSequences; ++i) {
    const uint32_t tokens = request.segments[i].num_tokens;
    if (request.segments[i].identity.has_value()) counters_.queries_tokens += tokens;
    if (i < num_cached) counters_.hits_tokens += tokens;
  }
}

}  // namespace retroinfer::kvstore
