#include "gpu_worker/wave_index/named_prefix.h"

#include "common/kv/segment_layout.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

std::span<const int32_t> TokensOf(const PlannedSegment& segment, std::span<const int32_t> prompt) {
  return prompt.subspan(static_cast<size_t>(segment.token_begin), segment.num_tokens);
}

}  // namespace

NamedPrefix NamePrefix(std::span<const int32_t> prompt, int64_t dense_below,
                       std::string_view fingerprint, std::string_view cache_salt) {
  NamedPrefix prefix;
  const auto num_tokens = static_cast<int64_t>(prompt.size());
  if (num_tokens == 0) return prefix;
  // Without room for generation all segments are of the prompt.
  prefix.segments = PlanSegments(num_tokens, num_tokens, dense_below);
  if (prefix.segments.empty()) return prefix;
  prefix.salt_hash = common::SaltHash(cache_salt);
  prefix.sink_name = common::NameSegment(
      common::RootName(fingerprint, prefix.salt_hash, kSegmentVersion), prompt.first(kSinkTokens));
  common::SegmentName parent = prefix.sink_name;
  for (const PlannedSegment& segment : prefix.segments) {
    parent = common::NameSegment(parent, TokensOf(segment, prompt));
    prefix.names.push_back(parent);
  }
  return prefix;
}

SegmentIdentity IdentityOf(const NamedPrefix& prefix, std::span<const int32_t> prompt,
                           size_t index) {
  RI_CHECK(index < prefix.names.size());
  const std::span<const int32_t> tokens = TokensOf(prefix.segments[index], prompt);
  return {.name = prefix.names[index],
          .parent = index == 0 ? prefix.sink_name : prefix.names[index - 1],
          .salt_hash = prefix.salt_hash,
          .token_ids = {tokens.begin(), tokens.end()}};
}

}  // namespace retroinfer
