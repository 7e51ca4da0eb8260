// What the KV of one sequence is called, so that later requests find it.
//
// KV is *exact* if it is bit by bit what a prefill of the tokens computes: that of a prompt's rows,
// as long as all they attended to was exact. Exact KV is named by its tokens alone. All other KV is
// *generated*: rows that decode steps made, and rows that were computed behind such rows. Its names
// are a chain of their own, from the first block or segment with such a row on, and depend on the
// settings of the sequence and on which rows were made how (common/hash/segment_name.h).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/extent.h"
#include "common/kv/named_segment.h"
#include "gpu_worker/kv/cached_run.h"
#include "gpu_worker/wave_index/named_prefix.h"

namespace retroinfer {

struct NamedBlock {
  int64_t token_begin = 0;
  SegmentIdentity identity;  // with the block's token ids
};

class KvLineage {
 public:
  // Names nothing.
  KvLineage() = default;
  // `made_by`: hash of the settings of the sequence; none: its generated KV gets no names. The KV
  // of the prompt's tokens from `alike_end` on is not that of any prompt with these tokens: names
  // follow from where the prompt ends, as those of generated KV do. REQUIRES: `prompt` and `prefix`
  // (of that prompt) outlive the object and stay where they are.
  KvLineage(const NamedPrefix& prefix, std::span<const int32_t> prompt,
            std::optional<common::Hash256> made_by,
            int64_t alike_end = std::numeric_limits<int64_t>::max())
      : prefix_(&prefix), prompt_(prompt), made_by_(made_by), alike_end_(alike_end) {}

  // The `num_tokens` tokens behind the prompt are rows that share what they retrieve, `rows` at a
  // time from the prompt's end on: other rows than steps make of the same tokens one by one.
  // REQUIRES: rows is more than 1. Called before the first name is asked for.
  void SetRuns(int64_t num_tokens, int64_t rows) { runs_ = {num_tokens, rows}; }

  // Whether anything has a name.
  bool names_any() const { return prefix_ != nullptr && !prefix_->texts.empty(); }
  const std::optional<common::Hash256>& made_by() const { return made_by_; }

  // What prefill reads instead of computing it; the leading `num_segments` are the sequence's own
  // leading segments. Called before the first name is asked for.
  void SetCached(std::span<const CachedRun> cached, size_t num_segments);
  // A token was generated: its KV will follow that of the one before.
  void Append(int32_t token) { generated_.push_back(token); }

  // Where the first row lies that is not exact, as far as is known at admission: at the latest
  // behind the prompt.
  int64_t exact_end() const { return exact_end_; }
  // Name of the generated KV that ends with the last cached segment of SetCached; none: it is
  // exact.
  std::optional<common::SegmentName> GeneratedOfCached() const;

  // What segment `index` of the sequence is called, where `extents` are its extents, one a segment;
  // none: it has no name. REQUIRES: the tokens of the segments up to it are known.
  std::optional<SegmentIdentity> OfSegment(size_t index, std::span<const Extent> extents) const;

  // The blocks that hold tokens [begin, end), where the leading `num_segments` segments end at
  // `begin`: those that have names, from position `from` on, the last one perhaps with fewer than
  // 64 tokens. Leaves out leading ones that were read from the cache.
  std::vector<NamedBlock> Blocks(size_t num_segments, std::span<const Extent> extents,
                                 int64_t begin, int64_t end, int64_t from) const;

 private:
  // A segment, in the order of the sequence.
  struct Link {
    bool is_named = false;
    common::SegmentName name;
    bool is_generated = false;
  };

  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt_.size()); }
  std::vector<int32_t> Tokens(int64_t begin, int64_t end) const;
  // Text name of a position; the tokens before it are known.
  common::SegmentName TextAt(int64_t position) const;
  common::Hash256 SourcesOf(int64_t begin, int64_t end) const;
  SegmentIdentity Generated(const std::optional<common::SegmentName>& before, int64_t begin,
                            int64_t end) const;
  // Fills links_ up to `index`.
  const Link& LinkOf(size_t index, std::span<const Extent> extents) const;
  std::optional<common::SegmentName> GeneratedBefore(size_t index,
                                                     std::span<const Extent> extents) const;

  const NamedPrefix* prefix_ = nullptr;
  std::span<const int32_t> prompt_;
  std::optional<common::Hash256> made_by_;
  int64_t alike_end_ = 0;
  struct Runs {
    int64_t num_tokens = 0;
    int64_t rows = 0;
  };
  Runs runs_;
  std::vector<int32_t> generated_;
  std::vector<CachedRun> cached_;
  size_t num_cached_segments_ = 0;
  int64_t exact_end_ = 0;
  // Computed once, when asked for.
  mutable std::vector<common::SegmentName> texts_;  // behind those of the prefix
  mutable std::vector<Link> links_;                 // by segment
};

}  // namespace retroinfer
