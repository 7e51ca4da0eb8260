#include "kv_store_service/directory/segment_store.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
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

absl::StatusOr<std::vector<ExtentRecord>> SegmentStore::Reserve(
    uint64_t sequence_id, std::span<const uint32_t> segment_tokens) {
  RETURN_IF_ERROR(CheckCount(segment_tokens.size()));
  std::vector<ExtentRecord> extents;
  if (const std::vector<uint64_t>* known = directory_.FindSequence(sequence_id)) {
    for (const uint64_t id : *known) extents.push_back(*directory_.FindExtent(id));
    const bool same =
        std::equal(extents.begin(), extents.end(), segment_tokens.begin(), segment_tokens.end(),
                   [](const ExtentRecord& extent, uint32_t tokens) {
                     return extent.reserved_tokens == tokens;
                   });
    if (same) return extents;
    return absl::AlreadyExistsError(
        absl::StrCat("sequence ", sequence_id, " has already reserved other extents"));
  }
  uint64_t needed = 0;
  for (const uint32_t tokens : segment_tokens) {
    RETURN_IF_ERROR(CheckTokens(tokens));
    needed += SegmentLayout(geometry_, tokens).max_pages;
  }
  for (const uint32_t tokens : segment_tokens) {
    const std::optional<PageRun> pages =
        needed <= allocator_.free_pages()
            ? allocator_.Allocate(SegmentLayout(geometry_, tokens).max_pages)
            : std::nullopt;
    if (!pages.has_value()) {
      for (const ExtentRecord& extent : extents) allocator_.Free(extent.pages);
      return ArenaFull(sequence_id, needed, segment_tokens.size());
    }
    extents.push_back({last_extent_id_ + 1 + extents.size(), *pages, sequence_id, tokens, {}});
  }
  last_extent_id_ += extents.size();
  RI_CHECK(directory_.AddSequence(sequence_id, extents).ok());
  return extents;
}

absl::Status SegmentStore::ArenaFull(uint64_t sequence_id, uint64_t needed_pages,
                                     size_t num_extents) const {
  const absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "the arena has no room for sequence ", sequence_id, ": needs ", needed_pages, " pages in ",
      num_extents, " extents; ", allocator_.free_pages(), " of ", allocator_.num_pages(),
      " pages are free, the longest run has ", allocator_.largest_free(),
      "; wait for other requests or start the store with a larger --arena-bytes"));
  return common::WithReason(status, "ARENA_FULL",
                            {{"needed_pages", absl::StrCat(needed_pages)},
                             {"free_pages", absl::StrCat(allocator_.free_pages())},
                             {"largest_free_pages", absl::StrCat(allocator_.largest_free())},
                             {"arena_pages", absl::StrCat(allocator_.num_pages())}});
}

absl::Status SegmentStore::CheckToCommit(uint64_t sequence_id,
                                         const SegmentToCommit& segment) const {
  const ExtentRecord* extent = directory_.FindExtent(segment.extent_id);
  if (extent == nullptr || extent->sequence_id != sequence_id) {
    return absl::NotFoundError(
        absl::StrCat("sequence ", sequence_id, " has no extent ", segment.extent_id));
  }
  if (segment.token_count != extent->reserved_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("extent ", segment.extent_id, " was reserved for ", extent->reserved_tokens,
                     " tokens, the segment has ", segment.token_count));
  }
  RETURN_IF_ERROR(CheckTokenBegin(segment.token_begin));
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
    const PageRun tail =
        directory_.Commit(segment.extent_id, segment.token_begin, image.used_pages);
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

absl::Status SegmentStore::Restore(std::span<const SequenceToRestore> sequences) {
  RI_CHECK(directory_.num_sequences() == 0);
  for (const SequenceToRestore& sequence : sequences) {
    const absl::Status status = RestoreSequence(sequence);
    if (!status.ok()) {
      Clear();
      return absl::InvalidArgumentError(absl::StrCat("restoring sequence ", sequence.sequence_id,
                                                     ": ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status SegmentStore::RestoreSequence(const SequenceToRestore& sequence) {
  if (directory_.FindSequence(sequence.sequence_id) != nullptr) {
    return absl::InvalidArgumentError("it occurs twice");
  }
  RETURN_IF_ERROR(CheckCount(sequence.extents.size()));
  std::set<uint64_t> ids;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // tokens of its segments: begin, end
  for (const ExtentRecord& extent : sequence.extents) {
    if (directory_.FindExtent(extent.id) != nullptr || !ids.insert(extent.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
    }
    RETURN_IF_ERROR(RestoreExtent(extent));
    if (extent.committed()) {
      ranges.emplace_back(*extent.token_begin, *extent.token_begin + extent.reserved_tokens);
    }
    last_extent_id_ = std::max(last_extent_id_, extent.id);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return absl::InvalidArgumentError(absl::StrCat("two segments have token ", ranges[i].first));
    }
  }
  return directory_.AddSequence(sequence.sequence_id, sequence.extents);
}

absl::Status SegmentStore::RestoreExtent(const ExtentRecord& extent) {
  if (extent.id == 0 || extent.id == UINT64_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("an extent with id ", extent.id));
  }
  RETURN_IF_ERROR(CheckTokens(extent.reserved_tokens));
  RETURN_IF_ERROR(allocator_.Take(extent.pages));
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
