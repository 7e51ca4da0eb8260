// Shapes and sizes of the KV cache that both processes must agree on.
//
// A *page* is 2 KiB: `tokens_per_page()` keys, then as many values, of one layer and one KV head. A
// *cluster* is a run of consecutive pages, the last one possibly part-filled. A *segment* is a run
// of tokens whose clusters, index and pages lie in one *extent* of the arena (see
// segment_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/kv/dtype.h"

namespace retroinfer {

using PageId = uint32_t;     // index of a page in the arena
using SlotId = uint32_t;     // index of a page-sized place in the block cache
using StepStamp = uint32_t;  // number of a decode step, modulo 2^32

inline constexpr PageId kNoPage = UINT32_MAX;
inline constexpr SlotId kNoSlot = UINT32_MAX;

inline constexpr size_t kPageBytes = 2048;
inline constexpr uint32_t kTokensPerCluster = 16;        // on average; a cluster's size varies
inline constexpr uint32_t kPrefillSegmentTokens = 8192;  // segments of a prompt
inline constexpr uint32_t kDecodeSegmentTokens = 1024;   // of generation and of a prompt's rest
inline constexpr uint32_t kClustersPerMetaBlock = 64;    // kDecodeSegmentTokens / kTokensPerCluster
inline constexpr uint32_t kSinkTokens = 4;

static_assert(kPrefillSegmentTokens % kDecodeSegmentTokens == 0);
static_assert(kDecodeSegmentTokens / kTokensPerCluster == kClustersPerMetaBlock);

struct KvGeometry {
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  DType dtype = DType::kBf16;

  // Returns INVALID_ARGUMENT unless 1 <= num_layers <= 1024, 1 <= num_kv_heads <= 1024, head_dim is
  // 64 or 128, and dtype is bf16 or f32.
  absl::Status Validate() const;

  constexpr uint32_t tokens_per_page() const {
    return static_cast<uint32_t>(kPageBytes / (2 * head_dim * DTypeBytes(dtype)));
  }
  // Bytes of one key or one value vector.
  constexpr size_t vector_bytes() const { return head_dim * DTypeBytes(dtype); }
  // Bytes of K and V of one token, over all layers and heads.
  constexpr size_t token_bytes() const {
    return size_t{2} * num_layers * num_kv_heads * vector_bytes();
  }
  constexpr uint32_t pages_of(uint32_t num_tokens) const {
    return (num_tokens + tokens_per_page() - 1) / tokens_per_page();
  }

  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

}  // namespace retroinfer
