#include "kv_store_service/directory/arena_segments.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/directory/segment_checks.h"
#include "kv_store_service/mapping/cluster_map.h"

namespace retroinfer::kvstore {
namespace {

// How often at most a reservation is planned anew with fewer cached segments.
constexpr size_t kStepsOfCached = 32;

// `progress` changes as long as room comes.
absl::Status DiskTakesTheRoom(uint64_t sequence_id, const std::string& progress) {
  return common::WithReason(
      absl::AbortedError(absl::StrCat("segments on their way between arena and disk, or extents of "
                                      "an expired lease, take the room for sequence ",
                                      sequence_id, "; try again soon")),
      kWaitsForDiskReason, {{"progress", progress}});
}

}  // namespace

ArenaSegments::ArenaSegments(uint32_t num_pages, const KvGeometry& geometry)
    : geometry_(geometry), allocator_(num_pages) {}

absl::StatusOr<Reservation> ArenaSegments::Reserve(const ReserveRequest& request,
                                                   bool compute_anyway) {
  RETURN_IF_ERROR(CheckRequest(request));
  if (directory_.FindSequence(request.sequence_id) != nullptr) return RepeatReservation(request);
  if (request.rows.has_value()) return ReserveRows(request, compute_anyway);
  Reservation reservation;
  const bool waits = !compute_anyway && !request.cached_only;
  Found found = FindLeading(request, waits);
  std::vector<ExtentRecord>& cached = found.cached;
  if (found.in_progress != nullptr) {
    return InProgress(request.segments[cached.size()].identity->name, *found.in_progress,
                      request.sequence_id);
  }
  std::optional<ReservationPlan> plan;
  if (!request.cached_only) {
    ASSIGN_OR_RETURN(plan, PlanExtents(request, !compute_anyway, Evictable::kCached, cached));
  }
  const bool are_compared =
      request.sequence_id >= kOwnSequences ||
      std::none_of(request.segments.begin(), request.segments.begin() + cached.size(),
                   [](const SegmentWanted& wanted) { return wanted.identity->token_ids.empty(); });
  if (!are_compared) {
    reservation.num_to_compare = cached.size();
    return reservation;
  }
  reservation.extents = std::move(cached);
  reservation.num_cached = reservation.extents.size();
  if (plan.has_value()) {
    Allocate(request, *plan, &reservation);
    NoteWanted(request, &reservation);
  }
  CountQuery(request, reservation.num_cached);
  if (reservation.extents.empty()) return reservation;
  RI_CHECK(directory_.AddSequence(request.sequence_id, reservation.extents, reservation.num_cached)
               .ok());
  return reservation;
}

absl::StatusOr<Reservation> ArenaSegments::ReserveOwn(uint64_t sequence_id,
                                                      std::vector<ExtentRecord> held,
                                                      std::span<const SegmentWanted> missing,
                                                      Evictable evictable) {
  RI_CHECK(sequence_id >= kOwnSequences);
  ReserveRequest request{.sequence_id = sequence_id};
  for (const ExtentRecord& extent : held) {
    request.segments.push_back({extent.reserved_tokens, extent.key->identity});
  }
  for (const SegmentWanted& segment : missing) {
    const common::SegmentName& name = segment.identity->name;
    if (directory_.FindNamed(name) != nullptr || directory_.FindInProgress(name) != nullptr) {
      return absl::AbortedError(absl::StrCat("segment ", name.ToHex(), " is on its way"));
    }
    request.segments.push_back(segment);
  }
  ASSIGN_OR_RETURN(const ReservationPlan plan,
                   PlanExtents(request, /*may_wait=*/false, evictable, held));
  Reservation reservation{std::move(held)};
  reservation.num_cached = reservation.extents.size();
  Allocate(request, plan, &reservation);
  for (size_t i = reservation.num_cached; i < reservation.extents.size(); ++i) {
    NoteWanted(*request.segments[i].identity, &reservation.extents[i]);
  }
  RI_CHECK(directory_.AddSequence(sequence_id, reservation.extents, reservation.num_cached).ok());
  return reservation;
}

absl::StatusOr<ReservationPlan> ArenaSegments::PlanExtents(
    const ReserveRequest& request, bool may_wait, Evictable evictable,
    std::vector<ExtentRecord>& cached) const {
  const auto pages_of = [&](const SegmentWanted& wanted) {
    return MaxImagePages(geometry_, wanted.num_tokens);
  };
  std::vector<uint32_t> counts;  // of all segments
  for (const SegmentWanted& wanted : request.segments) counts.push_back(pages_of(wanted));
  const std::span<const uint32_t> missing = std::span(counts).subspan(cached.size());
  const ReservationPlanner planner(allocator_, directory_, pinned_,
                                   SegmentLayout(geometry_, kPrefillSegmentTokens).max_pages);
  if (auto plan = planner.Plan(missing, cached, false)) return *std::move(plan);
  if (may_wait && WillFreePages()) {
    return DiskTakesTheRoom(request.sequence_id,
                            absl::StrCat(directory_.num_unpinned(), " ", withheld_pages_, " ",
                                         directory_.num_committed()));
  }
  // A pin keeps no request out: pinned segments are on the disk as well.
  if (evictable != Evictable::kUnpinned) {
    if (auto plan = planner.Plan(missing, cached, true)) return *std::move(plan);
  }
  // Cached segments may lie in the way of the rest: fewer of them are shared then.
  const size_t step = std::max<size_t>(1, cached.size() / kStepsOfCached);
  for (size_t left = evictable == Evictable::kCached ? cached.size() : 0; left > 0;) {
    left -= std::min(left, step);
    const std::span<const ExtentRecord> shared = std::span(cached).first(left);
    auto plan = planner.Plan(std::span(counts).subspan(left), shared, true);
    if (!plan.has_value()) continue;
    cached.resize(left);
    return *std::move(plan);
  }
  return ArenaFull(request.sequence_id,
                   std::accumulate(missing.begin(), missing.end(), uint64_t{0}), missing.size());
}

void ArenaSegments::Allocate(const ReserveRequest& request, const ReservationPlan& plan,
                             Reservation* reservation) {
  for (const uint64_t id : plan.evicted_ids) Free(directory_.Evict(id));
  counters_.evictions += plan.evicted_ids.size();
  for (size_t i = 0; i < plan.extents.size(); ++i) {
    RI_CHECK(allocator_.Take(plan.extents[i]).ok());
    const SegmentWanted& wanted = request.segments[reservation->num_cached + i];
    ExtentRecord& extent = reservation->extents.emplace_back();
    extent.id = ++last_extent_id_;
    extent.pages = plan.extents[i];
    extent.sequence_id = request.sequence_id;
    extent.reserved_tokens = wanted.num_tokens;
  }
}

bool ArenaSegments::EvictNamed(const common::SegmentName& name) {
  const ExtentRecord* segment = directory_.FindNamed(name);
  if (segment == nullptr || segment->references > 0) return false;
  Free(directory_.Evict(segment->id));
  return true;
}

void ArenaSegments::Free(const ExtentRecord& extent) {
  allocator_.Free(extent.pages);
  if (extent.committed()) num_clusters_ -= NumClusters(geometry_, extent.reserved_tokens);
}

absl::Status ArenaSegments::ArenaFull(uint64_t sequence_id, uint64_t needed_pages,
                                      size_t num_extents) const {
  const absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "the arena has no room for sequence ", sequence_id, ": needs ", needed_pages, " pages in ",
      num_extents, " extents; ", allocator_.free_pages(), " of ", allocator_.num_pages(),
      " pages are free, the longest run has ", allocator_.largest_free(),
      ", which does not do even without the ", directory_.unreferenced_pages(),
      " pages of unused segments; wait for other requests or start the store with a "
      "larger --arena-bytes"));
  return common::WithReason(status, "ARENA_FULL",
                            {{"needed_pages", absl::StrCat(needed_pages)},
                             {"free_pages", absl::StrCat(allocator_.free_pages())},
                             {"largest_free_pages", absl::StrCat(allocator_.largest_free())},
                             {"arena_pages", absl::StrCat(allocator_.num_pages())}});
}

absl::Status ArenaSegments::CheckToCommit(uint64_t sequence_id,
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
  RETURN_IF_ERROR(CheckTokenBegin(segment.token_begin, segment.token_count));
  if (segment.identity.has_value()) {
    RETURN_IF_ERROR(CheckIdentity(*segment.identity, segment.token_count));
  }
  if (extent->committed()) {
    if (*extent->token_begin == segment.token_begin) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("extent ", segment.extent_id,
                                                      " already holds the segment of token ",
                                                      *extent->token_begin));
  }
  // Whoever shares it would make pages found that have not come.
  if (extent->part_bytes != 0 && sequence_id < kOwnSequences) {
    return absl::FailedPreconditionError(
        absl::StrCat("extent ", segment.extent_id,
                     " holds a segment that the store reads from the disk; it is the store's to "
                     "commit"));
  }
  const ExtentRecord* other =
      directory_.FindOverlap(sequence_id, segment.token_begin, segment.token_count);
  if (other == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the segment of tokens ", segment.token_begin,
                                                 " to ", segment.token_begin + segment.token_count,
                                                 " overlaps that of extent ", other->id));
}

absl::StatusOr<std::vector<ImageToRead>> ArenaSegments::ImagesToCommit(
    uint64_t sequence_id, std::span<const SegmentToCommit> segments) {
  auto images = CheckCommit(sequence_id, segments);
  if (!images.ok()) AbandonWanted(sequence_id, segments);
  return images;
}

void ArenaSegments::AbandonWanted(uint64_t sequence_id, std::span<const SegmentToCommit> segments) {
  for (const SegmentToCommit& segment : segments) {
    if (directory_.References(sequence_id, segment.extent_id)) {
      directory_.AbandonWanted(segment.extent_id);
    }
  }
}

absl::StatusOr<std::vector<ImageToRead>> ArenaSegments::CheckCommit(
    uint64_t sequence_id, std::span<const SegmentToCommit> segments) const {
  RETURN_IF_ERROR(CheckCount(segments.size()));
  std::vector<const SegmentToCommit*> sorted;
  for (const SegmentToCommit& segment : segments) sorted.push_back(&segment);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->token_begin < b->token_begin; });
  std::vector<ImageToRead> images;
  std::set<uint64_t> extent_ids;
  uint64_t covered = 0;
  for (const SegmentToCommit* segment : sorted) {
    if (!extent_ids.insert(segment->extent_id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("extent ", segment->extent_id, " occurs twice in one call"));
    }
    RETURN_IF_ERROR(CheckToCommit(sequence_id, *segment));
    if (segment->token_begin < covered) {
      return absl::InvalidArgumentError(
          absl::StrCat("two segments of one call have token ", segment->token_begin));
    }
    covered = segment->token_begin + segment->token_count;
    const ExtentRecord& extent = *directory_.FindExtent(segment->extent_id);
    if (extent.committed()) continue;
    images.push_back({extent.id, extent.pages, segment->token_begin, segment->token_count});
  }
  return images;
}

absl::StatusOr<std::vector<ExtentRecord>> ArenaSegments::Commit(
    uint64_t sequence_id, std::span<const SegmentToCommit> segments, ReadImages images) {
  auto wanted = CheckCommit(sequence_id, segments);
  absl::Status status = wanted.status();
  for (size_t i = 0; status.ok() && i < wanted->size(); ++i) {
    const auto image = images.find((*wanted)[i].extent_id);
    status = image == images.end() ? absl::AbortedError("its image was not read")
                                   : image->second.status();
  }
  if (!status.ok()) {
    AbandonWanted(sequence_id, segments);
    return status;
  }
  std::vector<ExtentRecord> records;
  for (const SegmentToCommit& segment : segments) {
    const ExtentRecord& extent = *directory_.FindExtent(segment.extent_id);
    if (!extent.committed()) {
      const SegmentImage& image = *images.at(segment.extent_id);
      std::shared_ptr<const SegmentKey> key;
      if (segment.identity.has_value()) {
        key = std::make_shared<const SegmentKey>(SegmentKey{fingerprint_, *segment.identity});
      }
      const PageRun tail = directory_.Commit(segment.extent_id, segment.token_begin,
                                             image.used_pages, std::move(key));
      if (tail.count > 0) allocator_.Free(tail);
      num_clusters_ += NumClusters(geometry_, extent.reserved_tokens);
    }
    records.push_back(extent);
  }
  return records;
}

absl::Status ArenaSegments::MarkPartial(uint64_t sequence_id, const SegmentToCommit& segment,
                                        const absl::StatusOr<SegmentImage>& image,
                                        uint64_t image_pages, uint32_t part_bytes) {
  RETURN_IF_ERROR(CheckCommit(sequence_id, std::span(&segment, 1)).status());
  RETURN_IF_ERROR(image.status());
  if (image->used_pages != image_pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image has ", image_pages, " pages, its header says ", image->used_pages));
  }
  auto key = std::make_shared<const SegmentKey>(SegmentKey{fingerprint_, *segment.identity});
  const PageRun tail = directory_.MarkPartial(segment.extent_id, segment.token_begin,
                                              image->used_pages, part_bytes, std::move(key));
  if (tail.count > 0) allocator_.Free(tail);
  return absl::OkStatus();
}

uint64_t ArenaSegments::Release(uint64_t sequence_id) {
  uint64_t freed = 0;
  for (const ExtentRecord& extent : directory_.RemoveSequence(sequence_id)) {
    Free(extent);
    freed += extent.pages.count;
  }
  return freed;
}

uint64_t ArenaSegments::ReleaseAll(std::vector<PageRun>* unfinished) {
  uint64_t freed = 0;
  for (const uint64_t id : directory_.SequenceIds()) {
    if (id >= kOwnSequences) continue;
    for (const ExtentRecord& extent : directory_.RemoveSequence(id)) {
      if (unfinished != nullptr && !extent.committed()) {
        unfinished->push_back(extent.pages);
        withheld_pages_ += extent.pages.count;
        continue;
      }
      Free(extent);
      freed += extent.pages.count;
    }
  }
  return freed;
}

}  // namespace retroinfer::kvstore
