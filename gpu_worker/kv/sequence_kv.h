// What a live sequence holds of the KV cache: dense blocks, meta blocks and extents of the arena.
// Extents are reserved when the sequence is admitted, for all that it may generate until more are
// (SequenceSegments::Grow); blocks before the steps that need them (KvMemory::Grow), so that no
// decode step can run out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/extent.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/kv/cached_run.h"
#include "gpu_worker/kv/kv_lineage.h"
#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/wave_index/named_prefix.h"
#include "gpu_worker/wave_index/retrieval_width.h"

namespace retroinfer {

// Memory for the whole life of a sequence: its prompt and all tokens it may generate.
struct KvNeed {
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  std::vector<uint32_t> segment_tokens;  // in order; an extent for each
  int64_t lane_tokens = 0;               // a prefill lane must have; 0: the whole prompt's
};

// Blocks in device memory, by pool.
struct KvBlocks {
  int32_t dense = 0;
  int32_t meta = 0;

  friend bool operator==(const KvBlocks&, const KvBlocks&) = default;
};

// How far a sequence grows, in tokens.
struct KvGrowth {
  int64_t prompt_tokens = 0;
  int64_t total_tokens = 0;  // prompt + the most that may be generated
  // With KV. REQUIRES: prompt_tokens <= from <= to <= total_tokens.
  int64_t from = 0;
  int64_t to = 0;
};

// Tokens [begin, end) of a prompt, which go through the layers together. In front of their rows the
// lane's KV has `num_context` rows, which the policy puts there.
struct PromptPart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t num_context = 0;
  bool attends_to_all = false;  // its rows attend to all before them, whatever is in the lane
  // Behind the sink, the KV that the policy takes over has the tokens from here on. More than
  // kSinkTokens only where the tokens between them are cached, and nobody reads them from there.
  int64_t first_kept = kSinkTokens;
  // Of that KV, with the context's rows.
  int64_t num_kept() const { return num_context + end - begin - (first_kept - kSinkTokens); }
};

struct SequenceKv {
  uint64_t sequence_id = 0;
  AttentionSettings settings;
  int32_t table_row = -1;  // of the engine's block tables, in device memory
  int64_t prompt_tokens = 0;
  int64_t total_tokens = 0;  // prompt + the most that may be generated with what is reserved
  int64_t num_tokens = 0;    // with KV; the next token's position
  PromptPart part;           // in a lane, or read last
  bool reads_whole = false;  // its prompt goes through the layers as one: all its rows are wanted
  // Tokens behind the prompt that are known: steps are fed these before any token is drawn. What is
  // called the prompt everywhere here is then the head of the request's prompt.
  int64_t given_tokens = 0;
  // Row of the KV that TakeLayer gets. REQUIRES: a policy that reads prompts whole; the row is
  // there.
  int64_t TakenRowOf(int64_t position) const {
    return position < kSinkTokens ? position : position - part.first_kept + kSinkTokens;
  }

  // Dense zone. dense_blocks[0] is the sink's; those of the window follow, oldest first, then spare
  // ones. The window holds tokens [window_begin, num_tokens).
  std::vector<DenseBlockId> dense_blocks;
  int64_t window_begin = kSinkTokens;
  // The window's oldest blocks leave it and go to the end, where it will grow into them again. The
  // block tables do not know yet.
  void DropWindowBlocks(uint32_t num_blocks) {
    const auto oldest = dense_blocks.begin() + 1;
    std::rotate(oldest, oldest + num_blocks, dense_blocks.end());
    window_begin += int64_t{num_blocks} * kDenseBlockTokens;
  }

  // It has blocks that the block tables do not know yet (KvMemory::Grow): those of the index from
  // this one on.
  bool has_grown = false;
  size_t first_grown_meta_block = 0;

  // Index. The first `num_indexed_blocks` meta blocks are live; the others are reserved for
  // segments to come, as are extents.
  std::vector<MetaBlockId> meta_blocks;
  int32_t num_indexed_blocks = 0;
  RetrievalWidth retrieval_width;  // 1 without a limit on the unseen mass
  bool was_weighed = false;        // a step has told its unseen mass
  std::vector<Extent> extents;
  // Extents from `first` on were reserved while the answer grew, in the name `holder`; those in
  // front of them in the sequence's own.
  struct Growth {
    size_t first = 0;
    uint64_t holder = 0;
  };
  std::vector<Growth> growths;  // by `first`
  // In whose name the store holds an extent.
  uint64_t HolderOf(size_t extent) const {
    uint64_t holder = sequence_id;
    for (const Growth& growth : growths) holder = growth.first <= extent ? growth.holder : holder;
    return holder;
  }

  // The prompt, and what its segments are called. The leading `num_cached_segments` extents held
  // their segments already when the sequence was admitted: tokens [4, shared_end), whose index it
  // shares.
  std::span<const int32_t> prompt;  // of the request, which lives longer; given tokens follow it
  NamedPrefix prefix;
  KvLineage lineage;  // names of its KV, generated tokens included
  size_t num_cached_segments = 0;
  size_t num_shared_indexes = 0;  // of those, whose meta blocks are KvMemory's for all
  int64_t shared_end = kSinkTokens;
  // What prefill reads instead of computing it: those segments, then whatever else holds the tokens
  // behind them (segments of another size, blocks), without a gap from the sink on.
  std::vector<CachedRun> cached;
  int64_t read_end() const { return cached.empty() ? kSinkTokens : cached.back().token_end(); }
  // Whether all of the prompt but the sink is read, and nothing computed behind the sink: no row
  // attends to it before the steps. Only where given tokens follow.
  bool reads_all() const {
    return given_tokens > 0 && prompt_tokens > kSinkTokens && read_end() == prompt_tokens;
  }
  // As it was at admission: tokens [4, cached_end) had been computed for others.
  int64_t cached_end = kSinkTokens;
  int64_t cached_tokens() const { return cached_end - kSinkTokens; }

  // Whether a step has been fed any token. REQUIRES: the prompt is read.
  bool has_stepped() const { return num_tokens > prompt_tokens; }
  // Position of the first token that is drawn.
  int64_t drawn_begin() const { return prompt_tokens + given_tokens; }
  // Given tokens that no step has been fed. REQUIRES: the prompt is read.
  int64_t given_left() const { return std::max<int64_t>(0, drawn_begin() - num_tokens); }
  // The given token `ahead` of the next one. REQUIRES: ahead < given_left().
  int32_t GivenAt(int64_t ahead) const {
    return prompt.data()[std::ssize(prompt) + given_tokens - given_left() + ahead];
  }
  std::span<const int32_t> whole_prompt() const {
    return {prompt.data(), prompt.size() + static_cast<size_t>(given_tokens)};
  }

  // The segments' tails (window_layers.h), where the model has window layers: by segment. One that
  // cannot be written, because the window has left the ring, leaves the segment without a name.
  enum class Tail : uint8_t { kPending, kThere, kMissing };
  std::vector<Tail> tails;
  Tail TailOf(size_t segment) const {
    if (tails.empty()) return Tail::kThere;  // nothing to write
    return segment < tails.size() ? tails[segment] : Tail::kPending;
  }
};

}  // namespace retroinfer
