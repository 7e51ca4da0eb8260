// Names of what a prefill of a prompt computes: of the segments that it builds, and of whatever
// else may hold the KV of the same tokens. All of it follows from the tokens alone; names of
// generated KV follow from how a sequence came about (kv/kv_lineage.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/named_segment.h"
#include "gpu_worker/wave_index/segment_plan.h"

namespace retroinfer {

struct NamedPrefix {
  common::Hash256 salt_hash;
  common::SegmentName sink_name;
  std::vector<PlannedSegment> segments;    // of the prompt, in order of position
  std::vector<common::SegmentName> names;  // of segments
  // Text names (common/hash/segment_name.h) of positions 4 + 64 * i, as far as the prompt goes.
  std::vector<common::SegmentName> texts;
  // Segments of any size that may hold exact KV of the prompt: those above, and the segments of
  // 1024 tokens that shorter prompts with the same beginning build in the place of one of 8192. In
  // order of position.
  std::vector<RowsWanted::Segment> pieces;
};

// Names what `prompt` is made of; nothing of a prompt without tokens behind the sink. `fingerprint`
// stands for everything else that decides the bytes of KV; `how` says how a prompt is computed that
// is not computed exactly. Cost: SHA-256 of the prompt's tokens, three times.
NamedPrefix NamePrefix(std::span<const int32_t> prompt, int64_t dense_below,
                       std::string_view fingerprint, std::string_view cache_salt,
                       std::string_view how = {});

// Returns what identifies segment `index` of the prefix of `prompt`.
//
// REQUIRES: index < prefix.names.size().
SegmentIdentity IdentityOf(const NamedPrefix& prefix, std::span<const int32_t> prompt,
                           size_t index);

}  // namespace retroinfer
