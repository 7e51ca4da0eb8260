#include "kv_store_service/directory/arena_segments.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/directory/segment_checks.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kExtentIdMax = UINT64_MAX / 2;  // of a worker: those that follow must be new

// How often at most a request is tried with less of what is cached.
constexpr size_t kStepsOfCached = 32;

// Whether a committed segment is the wanted one, as far as the request says what it wants.
bool IsWanted(const SegmentIdentity& committed, const SegmentIdentity& wanted) {
  return committed.name == wanted.name && committed.parent == wanted.parent &&
         committed.salt_hash == wanted.salt_hash &&
         (wanted.token_ids.empty() || committed.token_ids == wanted.token_ids);
}

// `progress` changes as long as room comes.
absl::Status DiskTakesTheRoom(uint64_t sequence_id, const std::string& progress) {
  return common::WithReason(
      absl::AbortedError(absl::StrCat("segments on their way between arena and disk, or extents of "
                                      "a former worker, take the room for sequence ",
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
  Reservation reservation;
  std::vector<ExtentRecord> cached = FindCached(request);
  std::optional<Room> room;
  if (!request.cached_only) {
    if (!compute_anyway) RETURN_IF_ERROR(CheckNotInProgress(request, cached.size()));
    ASSIGN_OR_RETURN(room, FindRoom(request, !compute_anyway, cached));
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
  if (room.has_value()) TakeRoom(request, *room, &reservation);
  CountQuery(request, reservation.num_cached);
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

absl::StatusOr<Reservation> ArenaSegments::RepeatReservation(const ReserveRequest& request) const {
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

std::vector<ExtentRecord> ArenaSegments::FindCached(const ReserveRequest& request) const {
  std::vector<ExtentRecord> cached;
  uint64_t token_begin = kSinkTokens;
  for (const SegmentWanted& wanted : request.segments) {
    if (!wanted.identity.has_value()) break;
    const ExtentRecord* found = directory_.FindNamed(wanted.identity->name);
    if (found == nullptr || found->token_begin != token_begin ||
        found->key->fingerprint != fingerprint_ ||
        !IsWanted(found->key->identity, *wanted.identity)) {
      break;
    }
    cached.push_back(*found);
    token_begin += wanted.num_tokens;
  }
  return cached;
}

absl::Status ArenaSegments::CheckNotInProgress(const ReserveRequest& request,
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

absl::StatusOr<Room> ArenaSegments::FindRoom(const ReserveRequest& request, bool may_wait,
                                             std::vector<ExtentRecord>& cached) const {
  const auto pages_of = [&](const SegmentWanted& wanted) {
    return SegmentLayout(geometry_, wanted.num_tokens).max_pages;
  };
  std::vector<uint32_t> counts;  // of all segments
  for (const SegmentWanted& wanted : request.segments) counts.push_back(pages_of(wanted));
  const std::span<const uint32_t> missing = std::span(counts).subspan(cached.size());
  const RoomSearch search(allocator_, directory_, kept_,
                          SegmentLayout(geometry_, kPrefillSegmentTokens).max_pages);
  if (auto room = search.Find(missing, cached, false)) return *std::move(room);
  if (may_wait && RoomIsComing()) {
    return DiskTakesTheRoom(request.sequence_id,
                            absl::StrCat(directory_.num_unpinned(), " ", withheld_pages_, " ",
                                         directory_.num_committed()));
  }
  // A pin keeps no request out: what it holds is on the disk.
  if (auto room = search.Find(missing, cached, true)) return *std::move(room);
  // Where what is cached is in the way of the rest, less of it is used.
  const size_t step = std::max<size_t>(1, cached.size() / kStepsOfCached);
  for (size_t left = request.keeps_cached ? 0 : cached.size(); left > 0;) {
    left -= std::min(left, step);
    const std::span<const ExtentRecord> shared = std::span(cached).first(left);
    auto room = search.Find(std::span(counts).subspan(left), shared, true);
    if (!room.has_value()) continue;
    cached.resize(left);
    return *std::move(room);
  }
  return ArenaFull(request.sequence_id,
                   std::accumulate(missing.begin(), missing.end(), uint64_t{0}), missing.size());
}

void ArenaSegments::TakeRoom(const ReserveRequest& request, const Room& room,
                             Reservation* reservation) {
  for (const uint64_t id : room.evicted_ids) {
    allocator_.Free(directory_.Evict(id).pages);
    clusters_.Erase(id);
  }
  counters_.evictions += room.evicted_ids.size();
  for (size_t i = 0; i < room.extents.size(); ++i) {
    RI_CHECK(allocator_.Take(room.extents[i]).ok());
    const SegmentWanted& wanted = request.segments[reservation->num_cached + i];
    ExtentRecord& extent = reservation->extents.emplace_back();
    extent.id = ++last_extent_id_;
    extent.pages = room.extents[i];
    extent.sequence_id = request.sequence_id;
    extent.reserved_tokens = wanted.num_tokens;
    if (wanted.identity.has_value()) extent.wanted_name = wanted.identity->name;
  }
}

bool ArenaSegments::EvictNamed(const common::SegmentName& name) {
  const ExtentRecord* segment = directory_.FindNamed(name);
  if (segment == nullptr || segment->references > 0) return false;
  clusters_.Erase(segment->id);
  allocator_.Free(directory_.Evict(segment->id).pages);
  return true;
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

absl::StatusOr<std::vector<ImageToRead>> ArenaSegments::ImagesToCommit(
    uint64_t sequence_id, std::span<const SegmentToCommit> segments) {
  auto images = CheckCommit(sequence_id, segments);
  if (!images.ok()) AbandonWantedNames(sequence_id, segments);
  return images;
}

void ArenaSegments::AbandonWantedNames(uint64_t sequence_id,
                                       std::span<const SegmentToCommit> segments) {
  for (const SegmentToCommit& segment : segments) {
    if (directory_.References(sequence_id, segment.extent_id)) {
      directory_.AbandonWantedName(segment.extent_id);
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
    AbandonWantedNames(sequence_id, segments);
    return status;
  }
  std::vector<ExtentRecord> records;
  for (const SegmentToCommit& segment : segments) {
    const ExtentRecord& extent = *directory_.FindExtent(segment.extent_id);
    if (!extent.committed()) {
      SegmentImage& image = *images.at(segment.extent_id);
      std::shared_ptr<const SegmentKey> key;
      if (segment.identity.has_value()) {
        key = std::make_shared<const SegmentKey>(SegmentKey{fingerprint_, *segment.identity});
      }
      const PageRun tail = directory_.Commit(segment.extent_id, segment.token_begin,
                                             image.used_pages, std::move(key));
      if (tail.count > 0) allocator_.Free(tail);
      clusters_.Insert(segment.extent_id, extent.pages.first, geometry_.tokens_per_page(),
                       std::move(image.clusters));
    }
    records.push_back(extent);
  }
  return records;
}

uint64_t ArenaSegments::Release(uint64_t sequence_id) {
  uint64_t freed = 0;
  for (const ExtentRecord& extent : directory_.RemoveSequence(sequence_id)) {
    clusters_.Erase(extent.id);
    allocator_.Free(extent.pages);
    freed += extent.pages.count;
  }
  return freed;
}

uint64_t ArenaSegments::ReleaseAll(std::vector<PageRun>* unfinished) {
  uint64_t freed = 0;
  for (const uint64_t id : directory_.SequenceIds()) {
    if (id >= kOwnSequences) continue;
    for (const ExtentRecord& extent : directory_.RemoveSequence(id)) {
      clusters_.Erase(extent.id);
      if (unfinished != nullptr && !extent.committed()) {
        unfinished->push_back(extent.pages);
        withheld_pages_ += extent.pages.count;
        continue;
      }
      allocator_.Free(extent.pages);
      freed += extent.pages.count;
    }
  }
  return freed;
}

bool ArenaSegments::CanBeRead(const ExtentRecord& extent) const {
  return extent.committed() && CheckTokens(extent.reserved_tokens).ok() &&
         CheckTokenBegin(*extent.token_begin).ok() && extent.pages.count > 0 &&
         extent.pages.end() <= allocator_.num_pages() &&
         directory_.FindExtent(extent.id) == nullptr;
}

std::vector<ImageToRead> ArenaSegments::ImagesToDeclare(const Declaration& part) const {
  std::vector<ImageToRead> images;
  std::set<uint64_t> seen;
  const auto add = [&](const ExtentRecord& extent) {
    if (!CanBeRead(extent) || !seen.insert(extent.id).second) return;
    images.push_back({extent.id, extent.pages, *extent.token_begin, extent.reserved_tokens});
  };
  for (const DeclaredSegment& segment : part.segments) add(segment.extent);
  for (const DeclaredSequence& sequence : part.sequences) {
    for (const ExtentRecord& extent : sequence.extents) add(extent);
  }
  return images;
}

absl::Status ArenaSegments::Declare(const Declaration& part, ReadImages images) {
  for (const DeclaredSegment& segment : part.segments) {
    const absl::Status status = DeclareSegment(segment, images);
    if (!status.ok() && segment.is_referenced) {
      return absl::InvalidArgumentError(
          absl::StrCat("named segment ", segment.extent.id, ": ", std::string(status.message())));
    }
  }
  for (const DeclaredSequence& sequence : part.sequences) {
    const absl::Status status = DeclareSequence(sequence, images);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", sequence.sequence_id, ": ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status ArenaSegments::DeclareSegment(const DeclaredSegment& segment, ReadImages& images) {
  ExtentRecord extent = segment.extent;
  if (!extent.committed()) return absl::InvalidArgumentError("it is not committed");
  if (directory_.FindExtent(extent.id) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
  }
  if (directory_.FindNamed(segment.identity.name) != nullptr) {
    return absl::InvalidArgumentError("its name occurs twice");
  }
  RETURN_IF_ERROR(CheckIdentity(segment.identity, extent.reserved_tokens));
  RETURN_IF_ERROR(TakeExtent(extent, images));
  extent.key = std::make_shared<const SegmentKey>(SegmentKey{fingerprint_, segment.identity});
  directory_.AddNamed(std::move(extent));
  return absl::OkStatus();
}

absl::Status ArenaSegments::DeclareSequence(const DeclaredSequence& sequence, ReadImages& images) {
  if (sequence.sequence_id >= kOwnSequences || directory_.FindSequence(sequence.sequence_id)) {
    return absl::InvalidArgumentError("it occurs twice, or its number is the store's");
  }
  RETURN_IF_ERROR(CheckCount(sequence.extents.size()));
  if (sequence.num_cached > sequence.extents.size()) {
    return absl::InvalidArgumentError("it has more cached extents than extents");
  }
  std::set<uint64_t> ids;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // tokens of its segments: begin, end
  for (const ExtentRecord& extent : sequence.extents) {
    if (!ids.insert(extent.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
    }
    if (!extent.committed()) continue;
    RETURN_IF_ERROR(CheckTokenBegin(*extent.token_begin));
    ranges.emplace_back(*extent.token_begin, *extent.token_begin + extent.reserved_tokens);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return absl::InvalidArgumentError(absl::StrCat("two segments have token ", ranges[i].first));
    }
  }
  RETURN_IF_ERROR(TakeExtents(sequence, images));
  return directory_.DeclareSequence(sequence.sequence_id, sequence.extents, sequence.num_cached);
}

absl::Status ArenaSegments::TakeExtents(const DeclaredSequence& sequence, ReadImages& images) {
  std::vector<const ExtentRecord*> taken;
  absl::Status status;
  for (const ExtentRecord& extent : sequence.extents) {
    const ExtentRecord* known = directory_.FindExtent(extent.id);
    if (known == nullptr) {
      status = TakeExtent(extent, images);
      if (!status.ok()) break;
      taken.push_back(&extent);
      continue;
    }
    const bool is_shared = known->key != nullptr && known->pages == extent.pages &&
                           known->reserved_tokens == extent.reserved_tokens &&
                           known->token_begin == extent.token_begin;
    if (is_shared) continue;
    status = absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
    break;
  }
  if (status.ok()) return status;
  for (const ExtentRecord* extent : taken) {
    clusters_.Erase(extent->id);
    allocator_.Free(extent->pages);
  }
  return status;
}

absl::Status ArenaSegments::TakeExtent(const ExtentRecord& extent, ReadImages& images) {
  if (extent.id == 0 || extent.id > kExtentIdMax) {
    return absl::InvalidArgumentError(absl::StrCat("an extent with id ", extent.id));
  }
  last_extent_id_ = std::max(last_extent_id_, extent.id);
  RETURN_IF_ERROR(CheckTokens(extent.reserved_tokens));
  RETURN_IF_ERROR(allocator_.Take(extent.pages));
  absl::Status status = TakeClusters(extent, images);
  if (!status.ok()) allocator_.Free(extent.pages);
  return status;
}

absl::Status ArenaSegments::TakeClusters(const ExtentRecord& extent, ReadImages& images) {
  if (!extent.committed()) {
    const uint32_t max_pages = SegmentLayout(geometry_, extent.reserved_tokens).max_pages;
    if (extent.pages.count == max_pages) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "extent ", extent.id, " has ", extent.pages.count, " pages, needs ", max_pages));
  }
  RETURN_IF_ERROR(CheckTokenBegin(*extent.token_begin));
  const auto found = images.find(extent.id);
  if (found == images.end()) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " has no image"));
  }
  RETURN_IF_ERROR(found->second.status());
  SegmentImage& image = *found->second;
  if (image.used_pages != extent.pages.count) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " has ",
                                                   extent.pages.count, " pages, its segment ",
                                                   image.used_pages));
  }
  clusters_.Insert(extent.id, extent.pages.first, geometry_.tokens_per_page(),
                   std::move(image.clusters));
  return absl::OkStatus();
}

}  // namespace retroinfer::kvstore
