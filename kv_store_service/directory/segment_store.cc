#include "kv_store_service/directory/segment_store.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/arena/allocation_plan.h"
#include "kv_store_service/mapping/segment_image.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kTokenPositionMax = uint64_t{1} << 40;
constexpr size_t kSegmentsPerCallMax = 65536;

absl::Status CheckTokens(uint32_t tokens) {
  if (tokens > 0 && tokens <= kPrefillSegmentTokens && tokens % kDecodeSegmentTokens == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a segment of ", tokens, " tokens: needs a multiple of ", kDecodeSegmentTokens,
                   " up to ", kPrefillSegmentTokens));
}

absl::Status CheckTokenBegin(uint64_t token_begin) {
  if (token_begin >= kSinkTokens && token_begin < kTokenPositionMax &&
      (token_begin - kSinkTokens) % kDecodeSegmentTokens == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a segment that begins at token ", token_begin,
                                                 ": needs ", kSinkTokens, " plus a multiple of ",
                                                 kDecodeSegmentTokens));
}

absl::Status CheckCount(size_t count) {
  if (count >= 1 && count <= kSegmentsPerCallMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " segments in one call, needs 1 to ", kSegmentsPerCallMax));
}

absl::Status CheckTokenIds(const SegmentIdentity& identity, uint32_t num_tokens) {
  if (identity.token_ids.size() == num_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a named segment of ", num_tokens, " tokens has ",
                                                 identity.token_ids.size(), " token ids"));
}

absl::Status CheckIdentity(const SegmentIdentity& identity, uint32_t num_tokens) {
  RETURN_IF_ERROR(CheckTokenIds(identity, num_tokens));
  if (common::NameSegment(identity.parent, identity.token_ids) == identity.name) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the name ", identity.name.ToHex(),
                                                 " is not that of its parent and its tokens"));
}

absl::Status CheckRequest(const ReserveRequest& request) {
  if (!request.cached_only || !request.segments.empty()) {
    RETURN_IF_ERROR(CheckCount(request.segments.size()));
  }
  const SegmentWanted* previous = nullptr;
  for (const SegmentWanted& wanted : request.segments) {
    RETURN_IF_ERROR(CheckTokens(wanted.num_tokens));
    if (wanted.identity.has_value()) {
      RETURN_IF_ERROR(CheckTokenIds(*wanted.identity, wanted.num_tokens));
      if (previous != nullptr && (!previous->identity.has_value() ||
                                  previous->identity->name != wanted.identity->parent)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the segment ", wanted.identity->name.ToHex(),
            " does not follow the one before: named segments must be a chain and lead"));
      }
    }
    previous = &wanted;
  }
  return absl::OkStatus();
}

bool SameIdentity(const SegmentIdentity& a, const SegmentIdentity& b) {
  return a.name == b.name && a.parent == b.parent && a.salt_hash == b.salt_hash &&
         a.token_ids == b.token_ids;
}

}  // namespace

SegmentStore::SegmentStore(std::span<const std::byte> arena, const KvGeometry& geometry)
    : arena_(arena),
      geometry_(geometry),
      allocator_(static_cast<uint32_t>(arena.size() / kPageBytes)) {}

absl::Status SegmentStore::ValidateGeometry(const KvGeometry& geometry) {
  RETURN_IF_ERROR(geometry.Validate());
  const SegmentLayout layout(geometry, kPrefillSegmentTokens);
  const uint64_t max_pages = layout.first_kv_page + uint64_t{geometry.num_layers} *
                                                        geometry.num_kv_heads *
                                                        layout.max_pages_per_head;
  if (max_pages < kNoPage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("KV geometry: a segment of ",
                                                 kPrefillSegmentTokens, " tokens needs up to ",
                                                 max_pages, " pages, the limit is ", kNoPage - 1));
}

absl::StatusOr<Reservation> SegmentStore::Reserve(const ReserveRequest& request,
                                                  bool compute_anyway) {
  RETURN_IF_ERROR(CheckRequest(request));
  if (directory_.FindSequence(request.sequence_id) != nullptr) return RepeatReservation(request);
  Reservation reservation;
  reservation.extents = FindCached(request);
  reservation.num_cached = reservation.extents.size();
  if (!request.cached_only) {
    if (!compute_anyway) RETURN_IF_ERROR(CheckNotInProgress(request, reservation.num_cached));
    absl::Status status = AllocateExtents(request, &reservation);
    if (!status.ok() && !compute_anyway && DiskHoldsRoom()) {
      return common::WithReason(
          absl::AbortedError(absl::StrCat("segments that are on their way between arena and disk "
                                          "take the room for sequence ",
                                          request.sequence_id, "; try again soon")),
          kWaitsForDiskReason);
    }
    RETURN_IF_ERROR(status);
  }
  for (size_t i = 0; i < request.segments.size() && request.sequence_id < kOwnSequences; ++i) {
    const uint32_t tokens = request.segments[i].num_tokens;
    if (request.segments[i].identity.has_value()) counters_.queries_tokens += tokens;
    if (i < reservation.num_cached) counters_.hits_tokens += tokens;
  }
  if (reservation.extents.empty()) return reservation;
  RI_CHECK(directory_.AddSequence(request.sequence_id, reservation.extents, reservation.num_cached)
               .ok());
  return reservation;
}

absl::StatusOr<Reservation> SegmentStore::RepeatReservation(const ReserveRequest& request) const {
  const SequenceRecord& known = *directory_.FindSequence(request.sequence_id);
  Reservation reservation;
  reservation.num_cached = known.num_cached;
  for (const uint64_t id : known.extent_ids) {
    reservation.extents.push_back(*directory_.FindExtent(id));
  }
  const std::vector<ExtentRecord>& extents = reservation.extents;
  const bool complete = request.cached_only ? extents.size() == known.num_cached &&
                                                  extents.size() <= request.segments.size()
                                            : extents.size() == request.segments.size();
  if (complete && std::equal(extents.begin(), extents.end(), request.segments.begin(),
                             [](const ExtentRecord& extent, const SegmentWanted& wanted) {
                               return extent.reserved_tokens == wanted.num_tokens;
                             })) {
    return reservation;
  }
  return absl::AlreadyExistsError(
      absl::StrCat("sequence ", request.sequence_id, " has already reserved other extents"));
}

std::vector<ExtentRecord> SegmentStore::FindCached(const ReserveRequest& request) const {
  std::vector<ExtentRecord> cached;
  uint64_t token_begin = kSinkTokens;
  for (const SegmentWanted& wanted : request.segments) {
    if (!wanted.identity.has_value()) break;
    const ExtentRecord* found = directory_.FindNamed(wanted.identity->name);
    if (found == nullptr || found->token_begin != token_begin ||
        found->key->fingerprint != fingerprint_ ||
        !SameIdentity(found->key->identity, *wanted.identity)) {
      break;
    }
    cached.push_back(*found);
    token_begin += wanted.num_tokens;
  }
  return cached;
}

absl::Status SegmentStore::CheckNotInProgress(const ReserveRequest& request,
                                              size_t num_cached) const {
  if (num_cached == request.segments.size()) return absl::OkStatus();
  const SegmentWanted& next = request.segments[num_cached];
  if (!next.identity.has_value()) return absl::OkStatus();
  const ExtentRecord* other = directory_.FindInProgress(next.identity->name);
  if (other == nullptr) return absl::OkStatus();
  return common::WithReason(
      absl::AbortedError(absl::StrCat("segment ", next.identity->name.ToHex(), " for sequence ",
                                      request.sequence_id, " is being computed by sequence ",
                                      other->sequence_id, "; try again when it is committed")),
      other->sequence_id < kOwnSequences ? kSegmentInProgressReason : kWaitsForDiskReason,
      {{"sequence_id", absl::StrCat(other->sequence_id)},
       {"segment", next.identity->name.ToHex()}});
}

absl::Status SegmentStore::AllocateExtents(const ReserveRequest& request,
                                           Reservation* reservation) {
  const size_t num_cached = reservation->num_cached;
  std::vector<uint32_t> counts;
  uint64_t needed = 0;
  for (size_t i = num_cached; i < request.segments.size(); ++i) {
    counts.push_back(SegmentLayout(geometry_, request.segments[i].num_tokens).max_pages);
    needed += counts.back();
  }
  std::vector<uint64_t> evictable_ids;
  std::optional<AllocationPlan> plan = PlanAllocation(allocator_, counts, {});
  if (!plan.has_value()) {
    std::set<uint64_t> kept;
    for (const ExtentRecord& extent : reservation->extents) kept.insert(extent.id);
    std::vector<PageRun> runs;
    uint64_t kept_pages = 0;
    for (const ExtentRecord* segment : directory_.Unreferenced()) {
      if (kept.contains(segment->id)) continue;
      if (kept_ != nullptr && kept_->contains(segment->key->identity.name)) {
        // As many as requests can do without.
        kept_pages += segment->pages.count;
        if (kept_pages <= allocator_.num_pages() / 2) continue;
      }
      evictable_ids.push_back(segment->id);
      runs.push_back(segment->pages);
    }
    plan = PlanAllocation(allocator_, counts, runs);
  }
  if (!plan.has_value()) return ArenaFull(request.sequence_id, needed, counts.size());
  for (size_t i = 0; i < plan->num_evicted; ++i) {
    directory_.Evict(evictable_ids[i]);
    clusters_.Erase(evictable_ids[i]);
  }
  counters_.evictions += plan->num_evicted;
  allocator_ = std::move(plan->allocator);
  for (size_t i = 0; i < counts.size(); ++i) {
    const SegmentWanted& wanted = request.segments[num_cached + i];
    ExtentRecord& extent = reservation->extents.emplace_back();
    extent.id = ++last_extent_id_;
    extent.pages = plan->extents[i];
    extent.sequence_id = request.sequence_id;
    extent.reserved_tokens = wanted.num_tokens;
    if (wanted.identity.has_value()) extent.wanted_name = wanted.identity->name;
  }
  return absl::OkStatus();
}

bool SegmentStore::EvictNamed(const common::SegmentName& name) {
  const ExtentRecord* segment = directory_.FindNamed(name);
  if (segment == nullptr || segment->references > 0) return false;
  clusters_.Erase(segment->id);
  allocator_.Free(directory_.Evict(segment->id).pages);
  return true;
}

absl::Status SegmentStore::ArenaFull(uint64_t sequence_id, uint64_t needed_pages,
                                     size_t num_extents) const {
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("the arena has no room for sequence ", sequence_id, ": needs ", needed_pages,
                   " pages in ", num_extents, " extents; ", allocator_.free_pages(), " of ",
                   allocator_.num_pages(), " pages are free, the longest run has ",
                   allocator_.largest_free(), ", ", directory_.unreferenced_pages(),
                   " pages of unused segments could be evicted, as far as no "
                   "pinned context has them; wait for other requests, unpin contexts or start the "
                   "store with a larger --arena-bytes"));
  return common::WithReason(status, "ARENA_FULL",
                            {{"needed_pages", absl::StrCat(needed_pages)},
                             {"free_pages", absl::StrCat(allocator_.free_pages())},
                             {"largest_free_pages", absl::StrCat(allocator_.largest_free())},
                             {"arena_pages", absl::StrCat(allocator_.num_pages())}});
}

absl::Status SegmentStore::CheckToCommit(uint64_t sequence_id,
                                         const SegmentToCommit& segment) const {
  const ExtentRecord* extent = directory_.FindExtent(segment.extent_id);
  if (extent == nullptr || !directory_.References(sequence_id, segment.extent_id)) {
    return absl::NotFoundError(
        absl::StrCat("sequence ", sequence_id, " has no extent ", segment.extent_id));
  }
  if (segment.token_count != extent->reserved_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("extent ", segment.extent_id, " was reserved for ", extent->reserved_tokens,
                     " tokens, the segment has ", segment.token_count));
  }
  RETURN_IF_ERROR(CheckTokenBegin(segment.token_begin));
  if (segment.identity.has_value()) {
    RETURN_IF_ERROR(CheckIdentity(*segment.identity, segment.token_count));
  }
  if (extent->committed()) {
    if (*extent->token_begin == segment.token_begin) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("extent ", segment.extent_id,
                                                      " already holds the segment of token ",
                                                      *extent->token_begin));
  }
  const ExtentRecord* other =
      directory_.FindOverlap(sequence_id, segment.token_begin, segment.token_count);
  if (other == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the segment of tokens ", segment.token_begin,
                                                 " to ", segment.token_begin + segment.token_count,
                                                 " overlaps that of extent ", other->id));
}

absl::StatusOr<std::vector<ExtentRecord>> SegmentStore::Commit(
    uint64_t sequence_id, std::span<const SegmentToCommit> segments) {
  auto records = TryCommit(sequence_id, segments);
  if (records.ok()) return records;
  // Nobody may wait for what will not come.
  for (const SegmentToCommit& segment : segments) {
    if (directory_.References(sequence_id, segment.extent_id)) {
      directory_.AbandonWantedName(segment.extent_id);
    }
  }
  return records;
}

absl::StatusOr<std::vector<ExtentRecord>> SegmentStore::TryCommit(
    uint64_t sequence_id, std::span<const SegmentToCommit> segments) {
  RETURN_IF_ERROR(CheckCount(segments.size()));
  std::vector<SegmentToCommit> sorted(segments.begin(), segments.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.token_begin < b.token_begin; });
  std::vector<std::pair<SegmentToCommit, SegmentImage>> to_apply;
  std::set<uint64_t> extent_ids;
  uint64_t covered = 0;
  for (const SegmentToCommit& segment : sorted) {
    if (!extent_ids.insert(segment.extent_id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("extent ", segment.extent_id, " occurs twice in one call"));
    }
    RETURN_IF_ERROR(CheckToCommit(sequence_id, segment));
    if (segment.token_begin < covered) {
      return absl::InvalidArgumentError(
          absl::StrCat("two segments of one call have token ", segment.token_begin));
    }
    covered = segment.token_begin + segment.token_count;
    const ExtentRecord& extent = *directory_.FindExtent(segment.extent_id);
    if (extent.committed()) continue;
    ASSIGN_OR_RETURN(SegmentImage image,
                     ReadSegmentImage(BytesOf(extent.pages), geometry_, segment.token_begin,
                                      segment.token_count));
    to_apply.emplace_back(segment, std::move(image));
  }
  for (auto& [segment, image] : to_apply) {
    std::shared_ptr<const SegmentKey> key;
    if (segment.identity.has_value()) {
      key = std::make_shared<const SegmentKey>(
          SegmentKey{fingerprint_, *std::move(segment.identity)});
    }
    const PageRun tail =
        directory_.Commit(segment.extent_id, segment.token_begin, image.used_pages, std::move(key));
    if (tail.count > 0) allocator_.Free(tail);
    clusters_.Insert(segment.extent_id, directory_.FindExtent(segment.extent_id)->pages.first,
                     geometry_.tokens_per_page(), std::move(image.clusters));
  }
  std::vector<ExtentRecord> records;
  for (const SegmentToCommit& segment : segments) {
    records.push_back(*directory_.FindExtent(segment.extent_id));
  }
  return records;
}

uint64_t SegmentStore::Release(uint64_t sequence_id) {
  uint64_t freed = 0;
  for (const ExtentRecord& extent : directory_.RemoveSequence(sequence_id)) {
    clusters_.Erase(extent.id);
    allocator_.Free(extent.pages);
    freed += extent.pages.count;
  }
  return freed;
}

uint64_t SegmentStore::ReleaseAll() {
  uint64_t freed = 0;
  for (const uint64_t id : directory_.SequenceIds()) {
    if (id < kOwnSequences) freed += Release(id);
  }
  return freed;
}

absl::Status SegmentStore::Restore(std::span<const SequenceToRestore> sequences,
                                   std::span<const SegmentToRestore> named) {
  RI_CHECK(directory_.num_extents() == 0);
  absl::Status status = RestoreAll(sequences, named);
  if (!status.ok()) Clear();
  return status;
}

// What sequences reference comes first: an unreferenced segment that overlaps it is out of date.
absl::Status SegmentStore::RestoreAll(std::span<const SequenceToRestore> sequences,
                                      std::span<const SegmentToRestore> named) {
  std::set<uint64_t> referenced;
  for (const SequenceToRestore& sequence : sequences) {
    for (const ExtentRecord& extent : sequence.extents) referenced.insert(extent.id);
  }
  for (const SegmentToRestore& segment : named) {
    if (!referenced.contains(segment.extent.id)) continue;
    const absl::Status status = RestoreNamed(segment);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("restoring named segment ", segment.extent.id,
                                                     ": ", std::string(status.message())));
    }
  }
  for (const SequenceToRestore& sequence : sequences) {
    const absl::Status status = RestoreSequence(sequence);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("restoring sequence ", sequence.sequence_id,
                                                     ": ", std::string(status.message())));
    }
  }
  for (const SegmentToRestore& segment : named) {
    if (!referenced.contains(segment.extent.id)) (void)RestoreNamed(segment);
  }
  return absl::OkStatus();
}

absl::Status SegmentStore::RestoreNamed(const SegmentToRestore& segment) {
  ExtentRecord extent = segment.extent;
  if (!extent.committed()) return absl::InvalidArgumentError("it is not committed");
  if (directory_.FindExtent(extent.id) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
  }
  if (directory_.FindNamed(segment.identity.name) != nullptr) {
    return absl::InvalidArgumentError("its name occurs twice");
  }
  RETURN_IF_ERROR(CheckIdentity(segment.identity, extent.reserved_tokens));
  RETURN_IF_ERROR(RestoreExtent(extent));
  extent.key = std::make_shared<const SegmentKey>(SegmentKey{fingerprint_, segment.identity});
  directory_.AddNamed(std::move(extent));
  return absl::OkStatus();
}

absl::Status SegmentStore::RestoreSequence(const SequenceToRestore& sequence) {
  if (directory_.FindSequence(sequence.sequence_id) != nullptr) {
    return absl::InvalidArgumentError("it occurs twice");
  }
  RETURN_IF_ERROR(CheckCount(sequence.extents.size()));
  if (sequence.num_cached > sequence.extents.size()) {
    return absl::InvalidArgumentError("it has more cached extents than extents");
  }
  std::set<uint64_t> ids;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // tokens of its segments: begin, end
  for (const ExtentRecord& extent : sequence.extents) {
    const ExtentRecord* known = directory_.FindExtent(extent.id);
    const bool is_shared = known != nullptr && known->key != nullptr &&
                           known->pages == extent.pages &&
                           known->reserved_tokens == extent.reserved_tokens &&
                           known->token_begin == extent.token_begin;
    if (!ids.insert(extent.id).second || (known != nullptr && !is_shared)) {
      return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
    }
    if (!is_shared) RETURN_IF_ERROR(RestoreExtent(extent));
    if (extent.committed()) {
      ranges.emplace_back(*extent.token_begin, *extent.token_begin + extent.reserved_tokens);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return absl::InvalidArgumentError(absl::StrCat("two segments have token ", ranges[i].first));
    }
  }
  return directory_.RestoreSequence(sequence.sequence_id, sequence.extents, sequence.num_cached);
}

absl::Status SegmentStore::RestoreExtent(const ExtentRecord& extent) {
  if (extent.id == 0 || extent.id == UINT64_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("an extent with id ", extent.id));
  }
  last_extent_id_ = std::max(last_extent_id_, extent.id);
  RETURN_IF_ERROR(CheckTokens(extent.reserved_tokens));
  RETURN_IF_ERROR(allocator_.Take(extent.pages));
  absl::Status status = RestoreImage(extent);
  if (!status.ok()) allocator_.Free(extent.pages);
  return status;
}

absl::Status SegmentStore::RestoreImage(const ExtentRecord& extent) {
  if (!extent.committed()) {
    const uint32_t max_pages = SegmentLayout(geometry_, extent.reserved_tokens).max_pages;
    if (extent.pages.count == max_pages) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "extent ", extent.id, " has ", extent.pages.count, " pages, needs ", max_pages));
  }
  RETURN_IF_ERROR(CheckTokenBegin(*extent.token_begin));
  ASSIGN_OR_RETURN(SegmentImage image,
                   ReadSegmentImage(BytesOf(extent.pages), geometry_, *extent.token_begin,
                                    extent.reserved_tokens));
  if (image.used_pages != extent.pages.count) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " has ",
                                                   extent.pages.count, " pages, its segment ",
                                                   image.used_pages));
  }
  clusters_.Insert(extent.id, extent.pages.first, geometry_.tokens_per_page(),
                   std::move(image.clusters));
  return absl::OkStatus();
}

void SegmentStore::Clear() {
  allocator_ = ExtentAllocator(allocator_.num_pages());
  directory_ = SegmentDirectory();
  clusters_.Clear();
  last_extent_id_ = 0;
}

std::span<const std::byte> SegmentStore::BytesOf(PageRun pages) const {
  return arena_.subspan(size_t{pages.first} * kPageBytes, size_t{pages.count} * kPageBytes);
}

}  // namespace retroinfer::kvstore
