// Decides which tokens of a sequence become segments, and when: a pure function of lengths, so that
// two prompts with the same beginning have the same segments, and a request generates the same
// tokens whatever runs beside it.
//
// The sink (4 tokens) and at least 64 newest tokens are never in a segment. A prompt of
// `dense_below` tokens or more becomes segments of 8192 tokens, its rest segments of 1024. While
// decoding, when the local window reaches 1024 + 64 tokens, its oldest 1024 become a segment; a
// dense sequence that grows to `dense_below` gives up all it can at once. Such a segment is built
// in the background from `build_at` on and goes live at `live_at`, 64 tokens later.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

inline constexpr int64_t kMinWindowTokens = 64;
inline constexpr int64_t kBuildDelayTokens = 64;  // from build_at to live_at

struct PlannedSegment {
  int64_t token_begin = 0;  // position in the sequence
  uint32_t num_tokens = 0;  // 8192 or 1024
  int64_t build_at = 0;  // length of the sequence, in tokens with KV, at which building may begin
  int64_t live_at = 0;   // length from which on it is attended through the index

  friend bool operator==(const PlannedSegment&, const PlannedSegment&) = default;
};

// Returns the segments of a sequence that begins with `prompt_tokens` and grows to at most
// `total_tokens`, in order of position. Segments of the prompt have build_at = live_at =
// prompt_tokens; segments that would go live at total_tokens or later are left out.
//
// REQUIRES: 1 <= prompt_tokens <= total_tokens.
std::vector<PlannedSegment> PlanSegments(int64_t prompt_tokens, int64_t total_tokens,
                                         int64_t dense_below);

// Returns the largest number of tokens in the local window over the sequence's life.
int64_t MaxWindowTokens(const std::vector<PlannedSegment>& plan, int64_t prompt_tokens,
                        int64_t total_tokens);
// The same while it grows from `from` tokens with KV to `to`.
// REQUIRES: prompt_tokens <= from <= to <= the plan's total_tokens.
int64_t MaxWindowTokens(const std::vector<PlannedSegment>& plan, int64_t prompt_tokens,
                        int64_t from, int64_t to);

}  // namespace retroinfer
