// What a request asks of the segment store, and what it makes of the answer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/extent.h"
#include "common/kv/named_segment.h"
#include "gpu_worker/attention/sequence_kv.h"

namespace retroinfer {

// Returns what a sequence has to ask of the store; nothing if it needs nothing there. A sequence
// without segments of its own (policy `full`) takes its prompt's segments if they are there.
std::optional<ReserveRequest> ClaimSegments(const SequenceKv& sequence, const KvNeed& need);

// Gives `sequence` the store's answer to that request.
//
// Returns: INTERNAL, and the sequence is unchanged, if an extent is not inside an arena of
//          `arena_pages`: the answer comes from another process.
absl::Status TakeExtents(std::vector<Extent> extents, uint32_t arena_pages, SequenceKv& sequence);

// Returns what to commit when segment `index` of the sequence is built.
CommittedSegment CommitOf(const SequenceKv& sequence, size_t index, int64_t token_begin);

}  // namespace retroinfer
