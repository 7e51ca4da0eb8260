#include "gpu_worker/wave_index/named_prefix.h"

#include "common/kv/segment_layout.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

std::span<const int32_t> TokensOf(const PlannedSegment& segment, std::span<const int32_t> prompt) {
  return prompt.subspan(static_cast<size_t>(segment.token_begin), segment.num_tokens);
}

// Segments of 1024 tokens from `begin` on, as many as end at `end` or before.
void AddSmallPieces(std::span<const int32_t> prompt, int64_t begin, int64_t end,
                    common::SegmentName parent, std::vector<RowsWanted::Segment>& pieces) {
  for (; begin + kDecodeSegmentTokens <= end; begin += kDecodeSegmentTokens) {
    parent = common::NameSegment(parent,
                                 prompt.subspan(static_cast<size_t>(begin), kDecodeSegmentTokens));
    pieces.push_back({static_cast<uint64_t>(begin), kDecodeSegmentTokens, parent});
  }
}

std::vector<common::SegmentName> TextNames(std::span<const int32_t> prompt,
                                           const common::SegmentName& sink_name) {
  std::vector<common::SegmentName> texts = {sink_name};
  for (size_t begin = kSinkTokens; begin + kDenseBlockTokens <= prompt.size();
       begin += kDenseBlockTokens) {
    texts.push_back(common::NameSegment(texts.back(), prompt.subspan(begin, kDenseBlockTokens)));
  }
  return texts;
}

}  // namespace

NamedPrefix NamePrefix(std::span<const int32_t> prompt, int64_t dense_below,
                       std::string_view fingerprint, std::string_view cache_salt,
                       std::string_view how) {
  NamedPrefix prefix;
  const auto num_tokens = static_cast<int64_t>(prompt.size());
  if (num_tokens <= int64_t{kSinkTokens}) return prefix;
  // Without room for generation all segments are of the prompt.
  prefix.segments = PlanSegments(num_tokens, num_tokens, dense_below);
  prefix.salt_hash = common::SaltHash(cache_salt);
  if (!how.empty()) prefix.salt_hash = common::SaltHashOfForm(prefix.salt_hash, how);
  prefix.sink_name = common::NameSegment(
      common::RootName(fingerprint, prefix.salt_hash, kSegmentVersion), prompt.first(kSinkTokens));
  prefix.texts = TextNames(prompt, prefix.sink_name);
  common::SegmentName parent = prefix.sink_name;
  int64_t end = kSinkTokens;
  for (const PlannedSegment& segment : prefix.segments) {
    const common::SegmentName name = common::NameSegment(parent, TokensOf(segment, prompt));
    prefix.names.push_back(name);
    prefix.pieces.push_back({static_cast<uint64_t>(end), segment.num_tokens, name});
    if (segment.num_tokens > kDecodeSegmentTokens) {
      AddSmallPieces(prompt, end, end + segment.num_tokens, parent, prefix.pieces);
    }
    parent = name;
    end += segment.num_tokens;
  }
  AddSmallPieces(prompt, end, num_tokens, parent, prefix.pieces);
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
