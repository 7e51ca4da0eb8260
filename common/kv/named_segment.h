// What a worker asks of the store for a sequence, and commits to it: segments and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/hash/segment_name.h"

namespace retroinfer {

// Error reason of a reservation that must wait: another sequence computes the next named segment.
inline constexpr char kSegmentInProgressReason[] = "SEGMENT_IN_PROGRESS";
// The same, but the store reads it back from the disk, or writes segments there that take the room.
inline constexpr char kWaitsForDiskReason[] = "WAITS_FOR_DISK";

// A segment by its content: its place in the hash chain of common/hash/segment_name.h.
struct SegmentIdentity {
  common::SegmentName name;
  common::SegmentName parent;      // name of the segment before, or the sink name of its sequence
  common::Hash256 salt_hash;       // the tenant
  std::vector<int32_t> token_ids;  // of the segment
};

struct SegmentWanted {
  uint32_t num_tokens = 0;  // a multiple of 1024, at most 8192
  std::optional<SegmentIdentity> identity =
      std::nullopt;  // set: a committed segment of that name will do
};

// Extents for a sequence, in order of position.
struct ReserveRequest {
  uint64_t sequence_id = 0;                  // unique among the live sequences of the worker
  std::vector<SegmentWanted> segments = {};  // named ones, if any, lead
  // Take only what is committed: the answer is the leading run of cached extents, perhaps none, and
  // nothing is reserved or waited for.
  bool cached_only = false;
  // Share all that is committed, even if there is room for the rest only without.
  bool keeps_cached = false;

  // A request for extents without names.
  static ReserveRequest Unnamed(uint64_t sequence_id, const std::vector<uint32_t>& segment_tokens) {
    ReserveRequest request{.sequence_id = sequence_id};
    for (const uint32_t tokens : segment_tokens) request.segments.push_back({tokens, std::nullopt});
    return request;
  }
};

// A segment whose image (common/kv/segment_layout.h) is complete in its extent.
struct CommittedSegment {
  uint64_t extent_id = 0;
  uint64_t token_begin = 0;  // position in the sequence: kSinkTokens + a multiple of 1024
  std::optional<SegmentIdentity> identity = std::nullopt;  // set: other sequences may use it
};

}  // namespace retroinfer
