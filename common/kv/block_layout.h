// Byte layout of a block inside its extent of the arena: up to 64 consecutive tokens of one
// sequence, all layers and KV heads, as a dense block of device memory holds them
// (gpu_worker/ops/dense_pool.h). The same bytes are what a durable copy holds. Everything is
// little-endian.
//
//   L layers, H KV heads, p bytes of a page, t tokens of a page (KvFormat).
//
//   OFFSET   SIZE            DESCRIPTION
//   0        p               BlockHeader, zero-padded
//   p        L*H*(64/t)*p    pages [L][H][64/t]; of a block with fewer than 64 tokens, what lies
//                            behind the last token is unspecified
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

inline constexpr uint64_t kBlockMagic = 0x314b4c42'4f525452;  // "RTROBLK1"
inline constexpr uint32_t kBlockVersion = 1;

struct BlockHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_tokens;  // 1 to 64
  uint32_t num_layers;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t format;       // KvFormatId
  uint64_t token_begin;  // position in its sequence of the first token: 4 + a multiple of 64
};
static_assert(sizeof(BlockHeader) == 40 && std::is_trivially_copyable_v<BlockHeader>);

// Offsets of the parts of a block's image.
struct BlockLayout {
  explicit BlockLayout(const KvGeometry& geometry)
      : first_kv_page(1),
        num_pages(1 + geometry.num_layers * geometry.num_kv_heads *
                          (kDenseBlockTokens / geometry.tokens_per_page())) {}

  uint32_t first_kv_page;  // pages
  uint32_t num_pages;      // of an extent, whatever the number of tokens
};

}  // namespace retroinfer
