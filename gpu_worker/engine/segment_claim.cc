#include "gpu_worker/engine/segment_claim.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace retroinfer {

std::optional<ReserveRequest> ClaimSegments(const SequenceKv& sequence, const KvNeed& need) {
  const size_t num_names = sequence.prefix.names.size();
  ReserveRequest request{.sequence_id = sequence.sequence_id};
  request.cached_only = need.segment_tokens.empty();
  if (request.cached_only) {
    for (size_t i = 0; i < num_names; ++i) {
      request.segments.push_back({.num_tokens = sequence.prefix.segments[i].num_tokens,
                                  .identity = IdentityOf(sequence.prefix, sequence.prompt, i)});
    }
  }
  for (size_t i = 0; i < need.segment_tokens.size(); ++i) {
    SegmentWanted& wanted = request.segments.emplace_back();
    wanted.num_tokens = need.segment_tokens[i];
    if (i < num_names) wanted.identity = IdentityOf(sequence.prefix, sequence.prompt, i);
  }
  if (request.segments.empty()) return std::nullopt;
  return request;
}

absl::Status TakeExtents(std::vector<Extent> extents, uint32_t arena_pages, SequenceKv& sequence) {
  for (const Extent& extent : extents) {
    if (uint64_t{extent.first_page} + extent.num_pages <= arena_pages) continue;
    return absl::InternalError(absl::StrCat("the store answered with an extent of ",
                                            extent.num_pages, " pages from ", extent.first_page,
                                            "; the arena has ", arena_pages));
  }
  sequence.extents = std::move(extents);
  sequence.num_cached_segments = 0;
  sequence.cached_end = kSinkTokens;
  const size_t most = std::min(sequence.extents.size(), sequence.prefix.names.size());
  for (size_t i = 0; i < most && sequence.extents[i].cached; ++i) {
    ++sequence.num_cached_segments;
    sequence.cached_end += sequence.prefix.segments[i].num_tokens;
  }
  return absl::OkStatus();
}

CommittedSegment CommitOf(const SequenceKv& sequence, size_t index, int64_t token_begin) {
  CommittedSegment segment{.extent_id = sequence.extents[index].id,
                           .token_begin = static_cast<uint64_t>(token_begin)};
  if (index < sequence.prefix.names.size()) {
    segment.identity = IdentityOf(sequence.prefix, sequence.prompt, index);
  }
  return segment;
}

}  // namespace retroinfer
