// Taking over what a worker says it holds: the half of ArenaSegments that a restarted store needs.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/directory/segment_checks.h"
#include "kv_store_service/mapping/cluster_map.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kExtentIdMax = UINT64_MAX / 2;  // of a worker: those that follow must be new

}  // namespace

bool ArenaSegments::CanBeRead(const ExtentRecord& extent) const {
  return extent.committed() && CheckTokens(extent.reserved_tokens).ok() &&
         CheckTokenBegin(*extent.token_begin, extent.reserved_tokens).ok() &&
         extent.pages.count > 0 && extent.pages.end() <= allocator_.num_pages() &&
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

absl::Status ArenaSegments::DeclareSegment(const DeclaredSegment& segment,
                                           const ReadImages& images) {
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

absl::Status ArenaSegments::DeclareSequence(const DeclaredSequence& sequence,
                                            const ReadImages& images) {
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
    RETURN_IF_ERROR(CheckTokenBegin(*extent.token_begin, extent.reserved_tokens));
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

absl::Status ArenaSegments::TakeExtents(const DeclaredSequence& sequence,
                                        const ReadImages& images) {
  std::vector<const ExtentRecord*> taken;
  absl::Status status;
  for (size_t i = 0; i < sequence.extents.size(); ++i) {
    const ExtentRecord& extent = sequence.extents[i];
    const ExtentRecord* known = directory_.FindExtent(extent.id);
    if (known == nullptr) {
      status = TakeExtent(extent, images);
      if (!status.ok()) break;
      taken.push_back(&extent);
      continue;
    }
    // A worker that took over what an earlier one had named may not know the names: what several
    // sequences found cached is shared without one, too.
    const bool may_be_shared =
        known->key != nullptr || (known->committed() && i < sequence.num_cached);
    // Pages of it may be missing: nobody else finds it, and those who had it keep it.
    const bool is_partial = extent.part_bytes != 0 && known->part_bytes != 0;
    const bool is_shared = (may_be_shared || is_partial) && known->pages == extent.pages &&
                           known->reserved_tokens == extent.reserved_tokens &&
                           known->token_begin == extent.token_begin;
    if (is_shared) continue;
    status = absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " occurs twice"));
    break;
  }
  if (status.ok()) return status;
  for (const ExtentRecord* extent : taken) Free(*extent);
  return status;
}

absl::Status ArenaSegments::TakeExtent(const ExtentRecord& extent, const ReadImages& images) {
  if (extent.id == 0 || extent.id > kExtentIdMax) {
    return absl::InvalidArgumentError(absl::StrCat("an extent with id ", extent.id));
  }
  last_extent_id_ = std::max(last_extent_id_, extent.id);
  RETURN_IF_ERROR(CheckTokens(extent.reserved_tokens));
  RETURN_IF_ERROR(allocator_.Take(extent.pages));
  const absl::Status status = CheckImage(extent, images);
  if (!status.ok()) {
    allocator_.Free(extent.pages);
    return status;
  }
  if (extent.committed()) num_clusters_ += NumClusters(geometry_, extent.reserved_tokens);
  return status;
}

absl::Status ArenaSegments::CheckImage(const ExtentRecord& extent, const ReadImages& images) const {
  if (!extent.committed()) {
    const uint32_t max_pages = MaxImagePages(geometry_, extent.reserved_tokens);
    const bool fits = extent.part_bytes != 0 ? extent.pages.count < max_pages : false;
    if (fits || extent.pages.count == max_pages) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "extent ", extent.id, " has ", extent.pages.count, " pages, needs ", max_pages));
  }
  RETURN_IF_ERROR(CheckTokenBegin(*extent.token_begin, extent.reserved_tokens));
  const auto found = images.find(extent.id);
  if (found == images.end()) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " has no image"));
  }
  RETURN_IF_ERROR(found->second.status());
  const uint32_t used_pages = found->second->used_pages;
  if (used_pages == extent.pages.count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("extent ", extent.id, " has ", extent.pages.count,
                                                 " pages, its segment ", used_pages));
}

}  // namespace retroinfer::kvstore
