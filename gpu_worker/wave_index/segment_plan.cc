#include "gpu_worker/wave_index/segment_plan.h"

#include <algorithm>

#include "common/log/check.h"

namespace retroinfer {
namespace {

// Appends segments of `num_tokens` from `begin` on, as many as end at `limit` or before; returns
// where the last one ends.
int64_t Append(int64_t begin, int64_t limit, uint32_t num_tokens, int64_t build_at, int64_t live_at,
               std::vector<PlannedSegment>& plan) {
  for (; begin + num_tokens <= limit; begin += num_tokens) {
    plan.push_back({begin, num_tokens, build_at, live_at});
  }
  return begin;
}

}  // namespace

std::vector<PlannedSegment> PlanSegments(int64_t prompt_tokens, int64_t total_tokens,
                                         int64_t dense_below) {
  RI_CHECK(prompt_tokens >= 1 && prompt_tokens <= total_tokens);
  std::vector<PlannedSegment> plan;
  int64_t end = kSinkTokens;
  if (prompt_tokens >= dense_below) {
    const int64_t limit = prompt_tokens - kMinWindowTokens;
    end = Append(end, limit, kPrefillSegmentTokens, prompt_tokens, prompt_tokens, plan);
    end = Append(end, limit, kDecodeSegmentTokens, prompt_tokens, prompt_tokens, plan);
  }
  while (true) {
    const int64_t build_at =
        std::max({prompt_tokens, dense_below, end + kDecodeSegmentTokens + kMinWindowTokens});
    const int64_t live_at = build_at + kBuildDelayTokens;
    if (live_at >= total_tokens) return plan;
    end = Append(end, build_at - kMinWindowTokens, kDecodeSegmentTokens, build_at, live_at, plan);
  }
}

int64_t MaxWindowTokens(const std::vector<PlannedSegment>& plan, int64_t prompt_tokens,
                        int64_t total_tokens) {
  return MaxWindowTokens(plan, prompt_tokens, prompt_tokens, total_tokens);
}

int64_t MaxWindowTokens(const std::vector<PlannedSegment>& plan, int64_t prompt_tokens,
                        int64_t from, int64_t to) {
  int64_t begin = kSinkTokens;
  int64_t max_window = 0;
  for (const PlannedSegment& segment : plan) {
    if (segment.live_at > to) break;
    // A prompt's segments are never in the window; others are until they go live, which happens in
    // the step after: at `from` they may still be there.
    const bool is_in_window = segment.live_at > prompt_tokens && segment.live_at >= from;
    if (is_in_window) max_window = std::max(max_window, segment.live_at - begin);
    begin = segment.token_begin + segment.num_tokens;
  }
  return std::max({max_window, to - begin, int64_t{0}});
}

}  // namespace retroinfer
