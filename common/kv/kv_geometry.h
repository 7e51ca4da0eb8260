// Shapes and sizes of the KV cache that both processes must agree on.
//
// A *page* is `tokens_per_page()` keys, then as many values, of one layer and one KV head, stored
// as the format says (kv_format.h): 2 KiB without scales. A *cluster* is a run of consecutive
// pages, the last one possibly part-filled. A *segment* is a run of tokens whose clusters, index
// and pages lie in one *extent* of the arena (see segment_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/kv/kv_format.h"

namespace retroinfer {

using PageId = uint32_t;     // index of a page in the arena
using SlotId = uint32_t;     // index of a page-sized place in the block cache
using StepStamp = uint32_t;  // number of a decode step, modulo 2^32

inline constexpr PageId kNoPage = UINT32_MAX;
inline constexpr SlotId kNoSlot = UINT32_MAX;

inline constexpr uint32_t kTokensPerCluster = 16;        // on average; a cluster's size varies
inline constexpr uint32_t kPrefillSegmentTokens = 8192;  // segments of a prompt
inline constexpr uint32_t kDecodeSegmentTokens = 1024;   // of generation and of a prompt's rest
inline constexpr uint32_t kClustersPerMetaBlock = 64;    // kDecodeSegmentTokens / kTokensPerCluster
inline constexpr uint32_t kSinkTokens = 4;
inline constexpr uint32_t kDenseBlockTokens = 64;  // a whole number of pages in every format

// Numbers that a key or a value may have; in every format a page has a whole number of such
// vectors.
inline constexpr uint32_t kHeadDims[] = {64, 128, 256};
inline constexpr uint32_t kMaxHeadDim = 256;
constexpr bool IsHeadDim(int64_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

static_assert(kPrefillSegmentTokens % kDecodeSegmentTokens == 0);
static_assert(kDecodeSegmentTokens / kTokensPerCluster == kClustersPerMetaBlock);

// Longest window of a window layer: what it holds of a sequence must stay small beside a segment.
inline constexpr uint32_t kMaxLayerWindow = 8192;
// Kept tokens of window layers begin at multiples of this, the largest block of keys that attention
// to a prompt sums up at a time: so what a token sums up does not depend on where its prompt was
// cut.
inline constexpr uint32_t kWindowStep = 128;

struct KvGeometry {
  uint32_t num_layers = 0;  // whose tokens are indexed: a token sees all before it
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  KvFormat format;
  // Window layers, beside those: a token sees the newest `window_tokens`, itself included, or
  // fewer. Their KV is in no cluster; a segment ends with what the next token needs of it
  // (segment_layout.h). Both are 0, or neither is.
  uint32_t num_window_layers = 0;
  uint32_t window_tokens = 0;

  // Returns INVALID_ARGUMENT unless 1 <= num_layers <= 1024, 1 <= num_kv_heads <= 1024, head_dim is
  // one of kHeadDims, dense blocks are whole pages of the format, and window layers are 0 with a
  // window of 0, or up to 1024 with one of 1 to kMaxLayerWindow. Codes of tokens need a power of
  // two as head_dim, which the message says first.
  absl::Status Validate() const;

  // Layers of the model.
  constexpr uint32_t num_model_layers() const { return num_layers + num_window_layers; }
  constexpr bool has_window_layers() const { return num_window_layers > 0; }
  // The window layers as a geometry of their own: of their dense blocks.
  constexpr KvGeometry of_window_layers() const {
    return {num_window_layers, num_kv_heads, head_dim, format};
  }
  // First token of window layers that is kept when the next token is at `position`.
  constexpr int64_t WindowBegin(int64_t position) const {
    const int64_t first = position + 1 - static_cast<int64_t>(window_tokens);
    return first <= 0 ? 0 : first / kWindowStep * kWindowStep;
  }
  // Most tokens from WindowBegin(position) to `position`, in dense blocks.
  constexpr uint32_t max_window_blocks() const {
    if (window_tokens == 0) return 0;
    return (window_tokens - 1 + kWindowStep - 1 + kDenseBlockTokens - 1) / kDenseBlockTokens;
  }

  constexpr PageLayout page() const { return {format, head_dim}; }
  constexpr uint32_t tokens_per_page() const { return page().tokens; }
  constexpr size_t page_bytes() const { return page().bytes; }
  // What first places of clusters count (cluster_place.h): tokens' places where clusters are
  // packed, else whole pages.
  constexpr uint32_t places_per_page() const {
    return format.packs_clusters ? tokens_per_page() : 1;
  }
  // Bytes of K and V of one token in full pages, over all layers and heads.
  constexpr size_t token_bytes() const {
    return size_t{num_layers} * num_kv_heads * page_bytes() / tokens_per_page();
  }
  // Bytes of one key or one value of a prompt that is being read.
  constexpr size_t prompt_vector_bytes() const { return head_dim * DTypeBytes(format.prompt); }
  constexpr uint32_t pages_of(uint32_t num_tokens) const {
    const uint32_t per_page = tokens_per_page();
    return (num_tokens + per_page - 1) / per_page;
  }

  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

}  // namespace retroinfer
