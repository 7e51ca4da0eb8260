// What a worker asks of the store for a sequence, and commits to it: segments, blocks, and their
// names.
//
// A segment has a multiple of 1024 tokens, at most 8192, and an index. A block has 1 to 64 tokens
// and no index; it begins at position 4 + a multiple of 64, and only the last one of a text has
// fewer than 64 tokens. Which of the two an extent holds follows from its number of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer {

// Error reason of a reservation that must wait: another sequence computes the next named segment.
inline constexpr char kSegmentInProgressReason[] = "SEGMENT_IN_PROGRESS";
// The same, but the store reads it back from the disk, or writes segments there that take the room.
inline constexpr char kWaitsForDiskReason[] = "WAITS_FOR_DISK";

// Whether an extent of so many tokens holds a block.
constexpr bool IsBlock(uint32_t num_tokens) { return num_tokens <= kDenseBlockTokens; }

// A segment or a block by its content: its place in a hash chain of common/hash/segment_name.h.
struct SegmentIdentity {
  common::SegmentName name;
  // Exact: name of the segment before, or the sink name of its sequence; of a block, the text name
  // of where it begins. Generated: see NameGenerated().
  common::SegmentName parent;
  common::Hash256 salt_hash;                                    // the tenant
  std::vector<int32_t> token_ids;                               // of the segment
  std::optional<common::Provenance> provenance = std::nullopt;  // set: generated
};

struct SegmentWanted {
  uint32_t num_tokens = 0;  // a multiple of 1024, at most 8192; or 1 to 64
  std::optional<SegmentIdentity> identity =
      std::nullopt;  // set: a committed segment of that name will do
  // Text name of its end. With ReserveRequest::made_by, a generated segment of these tokens will
  // do, too.
  std::optional<common::SegmentName> text = std::nullopt;
};

// What may hold the KV of a prompt's tokens from `token_begin` on: whatever segments and blocks
// follow one another without a gap, whoever made them. The longest one at each position is taken.
struct RowsWanted {
  uint64_t token_begin = 0;  // 4 + a multiple of 64
  // Name of the generated KV that ends at token_begin; not set: all KV before is exact.
  std::optional<common::SegmentName> generated = std::nullopt;
  // Text names of positions token_begin + 64 * i, as far as the prompt goes; the first is that of
  // token_begin.
  std::vector<common::SegmentName> texts = {};
  // Exact segments that may begin at or behind token_begin.
  struct Segment {
    uint64_t token_begin = 0;
    uint32_t num_tokens = 0;
    common::SegmentName name;
  };
  std::vector<Segment> segments = {};  // in order of position
  // Of the sequence that will read the rows: what it computes itself is not waited for.
  uint64_t sequence_id = 0;
  // Tokens from token_begin on: those before the prompt's last one, which is always computed.
  std::vector<int32_t> token_ids = {};
};

// Extents for a sequence, in order of position.
struct ReserveRequest {
  uint64_t sequence_id = 0;                  // unique among the live sequences of the worker
  std::vector<SegmentWanted> segments = {};  // named ones, if any, lead
  // Take only what is committed: the answer is the leading run of cached extents, perhaps none, and
  // nothing is reserved or waited for.
  bool cached_only = false;
  uint64_t token_begin = kSinkTokens;  // of the first segment
  // Set: generated KV may be shared that was made under settings of this hash.
  std::optional<common::Hash256> made_by = std::nullopt;
  // The caller can do with segments of which only the index is there, and asks for pages as it
  // needs them: of named segments that are being read from the disk.
  bool takes_partial = false;
  // The caller does without an answer that would have to wait for others: ABORTED then.
  bool waits = true;
  // Set: there are no `segments`. The answer is the run of cached extents that holds these rows,
  // perhaps none; nothing is reserved. It waits for what is being committed or read from the disk.
  std::optional<RowsWanted> rows = std::nullopt;

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
  uint64_t token_begin = 0;  // position: kSinkTokens + a multiple of 1024; of a block, of 64
  std::optional<SegmentIdentity> identity = std::nullopt;  // set: other sequences may use it
};

}  // namespace retroinfer
