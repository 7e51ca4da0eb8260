#include "kv_store_service/store/segment_listing.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv/named_segment.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

std::vector<ExtentListing> SegmentListing::List(uint64_t after_extent_id, size_t limit) const {
  absl::MutexLock lock(&state_.mutex);
  std::vector<ExtentListing> listings;
  if (state_.current.segments == nullptr) return listings;
  const ArenaSegments& segments = *state_.current.segments;
  for (const ExtentRecord* record : segments.directory().List(after_extent_id, limit)) {
    const uint64_t clusters =
        record->committed() ? NumClusters(segments.geometry(), record->reserved_tokens) : 0;
    listings.push_back({*record, clusters});
  }
  return listings;
}

absl::StatusOr<SegmentListing::Segment> SegmentListing::FindSegment(uint64_t extent_id) const {
  absl::MutexLock lock(&state_.mutex);
  const ExtentRecord* const record =
      state_.current.segments == nullptr
          ? nullptr
          : state_.current.segments->directory().FindExtent(extent_id);
  if (record == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no extent ", extent_id));
  }
  if (!record->committed() || IsBlock(record->reserved_tokens)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "extent ", extent_id, " has no clusters: ",
        record->committed() ? "it holds a block" : "its segment is not committed yet"));
  }
  return Segment{state_.current.arena, state_.current.segments->geometry(), record->pages,
                 record->reserved_tokens};
}

absl::StatusOr<SegmentClusters> SegmentListing::FindClusters(uint64_t extent_id,
                                                             std::optional<Head> head) const {
  ASSIGN_OR_RETURN(const Segment segment, FindSegment(extent_id));
  const KvGeometry& geometry = segment.geometry;
  if (head.has_value() &&
      (head->layer >= geometry.num_layers || head->kv_head >= geometry.num_kv_heads)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", head->layer, ", KV head ", head->kv_head, ": the model has ",
                     geometry.num_layers, " layers of ", geometry.num_kv_heads, " KV heads"));
  }
  const ClusterMap map(segment.arena->BytesOf(segment.pages), segment.pages.first, geometry,
                       segment.num_tokens);
  SegmentClusters found{.tokens_per_page = geometry.tokens_per_page()};
  std::vector<bool> taken(segment.pages.count);
  absl::Status status;
  for (size_t index = 0; status.ok() && index < map.num_heads(); ++index) {
    auto clusters = map.Find(index, &taken);
    status = clusters.status();
    if (!status.ok()) break;
    for (const ClusterPages& cluster : *clusters) {
      found.num_empty += cluster.num_tokens == 0;
      found.max_tokens = std::max(found.max_tokens, cluster.num_tokens);
    }
    found.num_clusters += clusters->size();
    if (head.has_value() && index == size_t{head->layer} * geometry.num_kv_heads + head->kv_head) {
      found.of_head = *std::move(clusters);
    }
  }
  // The lock was free while the index was read: another segment may lie there by now.
  const auto after = FindSegment(extent_id);
  if (!after.ok() || after->arena != segment.arena || after->pages != segment.pages) {
    return absl::AbortedError(
        absl::StrCat("the segment of extent ", extent_id, " has left the arena meanwhile"));
  }
  found.num_pages = static_cast<uint64_t>(std::count(taken.begin(), taken.end(), true));
  if (status.ok()) return found;
  return absl::DataLossError(
      absl::StrCat("extent ", extent_id,
                   " was changed since it was committed: ", std::string(status.message())));
}

}  // namespace retroinfer::kvstore
