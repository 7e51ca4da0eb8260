// Names of the segments that a prefill builds from a prompt: what a prompt can share with others.
//
// Only these have names. The KV of generated tokens comes out of approximate attention and of
// decode steps, and is not bit by bit what a prefill of the same tokens computes.
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
};

// Names the segments of `prompt`. `fingerprint` stands for everything else that decides their
// bytes. Cost: SHA-256 of the prompt's tokens.
NamedPrefix NamePrefix(std::span<const int32_t> prompt, int64_t dense_below,
                       std::string_view fingerprint, std::string_view cache_salt);

// Returns what identifies segment `index` of the prefix of `prompt`.
//
// REQUIRES: index < prefix.names.size().
SegmentIdentity IdentityOf(const NamedPrefix& prefix, std::span<const int32_t> prompt,
                           size_t index);

}  // namespace retroinfer
