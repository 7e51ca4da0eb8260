// What a request asks of the segment store, and what it makes of the answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/extent.h"
#include "common/kv/named_segment.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/attention/block_choice.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// Returns the hash of all settings that decide what decode steps compute.
// How prompts of the settings are computed, for NamePrefix(): empty where exactly.
std::string HowPrefilled(const AttentionSettings& settings, const BlockChoice& sparse);

common::Hash256 MadeBy(const AttentionSettings& settings, const WaveIndexSettings& index);

// Returns the extents that a sequence has to ask of the store, for the segments of its whole life;
// nothing if it needs none. Of those of its prompt, the leading ones that are committed are shared.
std::optional<ReserveRequest> ClaimSegments(const SequenceKv& sequence, const KvNeed& need);

// Gives `sequence` the store's answer to that request.
//
// Returns: INTERNAL, and the sequence is unchanged, if an extent is not inside an arena of
//          `arena_pages`: the answer comes from another process.
absl::Status TakeExtents(std::vector<Extent> extents, uint32_t arena_pages, SequenceKv& sequence);

// Gives `sequence` further extents, which the store holds in the name `holder`.
//
// Returns: INTERNAL, and the sequence is unchanged, if they are not `num_wanted`, or not inside.
absl::Status TakeGrowth(const std::vector<Extent>& extents, size_t num_wanted, uint64_t holder,
                        uint32_t arena_pages, SequenceKv& sequence);

// Returns what the sequence asks of the store behind that: whatever else holds KV of its prompt, in
// the name of `rows_id`, a sequence of its own; nothing if there can be none. The prompt's last
// token is computed, and not asked for, unless given tokens follow and all segments are there.
std::optional<ReserveRequest> ClaimRows(const SequenceKv& sequence, uint64_t rows_id);

// Gives `sequence` the answer to that. Returns: as TakeExtents().
absl::Status TakeRows(const std::vector<Extent>& extents, uint32_t arena_pages,
                      const KvGeometry& geometry, SequenceKv& sequence);

// Returns what to commit when segment `index` of the sequence is built.
CommittedSegment CommitOf(const SequenceKv& sequence, size_t index, int64_t token_begin);

}  // namespace retroinfer
