// Writes valid segment images, for tests to use or to damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/kv/block_layout.h"
#include "common/kv/named_segment.h"
#include "common/kv/segment_layout.h"

namespace retroinfer::kvstore {

// Geometry of the smallest model that tests use: a segment of 1024 tokens has about 1 MiB.
inline constexpr KvGeometry kTinyGeometry{2, 2, 64, kBf16Kv};

// Writes a segment whose clusters have 15, 17, 15, 17, ... tokens, those of the first `even_heads`
// 16 each (the last two of each head: 32 and 0), with their pages, or packed their tokens, back to
// back, the tokens in reverse order. Returns used_pages.
//
// REQUIRES: extent.size() >= SegmentLayout::max_pages * kPageBytes.
inline uint32_t WriteSegment(std::span<std::byte> extent, const KvGeometry& geometry,
                             uint64_t token_begin, uint32_t num_tokens, uint32_t even_heads = 0) {
  const SegmentLayout layout(geometry, num_tokens);
  uint32_t next_place = layout.first_kv_page * geometry.places_per_page();
  auto* entries = reinterpret_cast<ClusterEntry*>(extent.data() + layout.clusters_offset);
  const uint32_t num_heads = geometry.num_layers * geometry.num_kv_heads;
  for (uint32_t head = 0; head < num_heads; ++head) {
    for (uint32_t i = 0; i < layout.num_clusters; ++i, ++entries) {
      const uint32_t spread = head < even_heads ? 0 : 1;
      uint32_t tokens = i % 2 == 0 ? 16 - spread : 16 + spread;
      if (i + 2 == layout.num_clusters) tokens = 32;
      if (i + 1 == layout.num_clusters) tokens = 0;
      *entries = {tokens == 0 ? 0 : next_place, tokens};
      next_place += geometry.format.packs_clusters ? tokens : geometry.pages_of(tokens);
    }
  }
  auto* order = reinterpret_cast<TokenOrder*>(extent.data() + layout.order_offset);
  for (uint32_t i = 0; i < num_heads * num_tokens; ++i) {
    order[i] = static_cast<TokenOrder>(num_tokens - 1 - i % num_tokens);
  }
  SegmentHeader header{};
  header.magic = kSegmentMagic;
  header.version = SegmentVersionOf(geometry);
  header.num_tokens = num_tokens;
  header.num_clusters = layout.num_clusters;
  header.num_layers = geometry.num_layers;
  header.num_kv_heads = geometry.num_kv_heads;
  header.head_dim = geometry.head_dim;
  header.format = static_cast<uint32_t>(geometry.format.id);
  header.used_pages = next_place / geometry.places_per_page();
  header.token_begin = token_begin;
  header.num_window_layers = geometry.num_window_layers;
  header.window_tokens = geometry.window_tokens;
  std::memcpy(extent.data(), &header, sizeof(header));
  return header.used_pages;
}

// Writes the header of a block. Returns its pages.
//
// REQUIRES: extent.size() >= BlockLayout::num_pages * kPageBytes.
inline uint32_t WriteBlock(std::span<std::byte> extent, const KvGeometry& geometry,
                           uint64_t token_begin, uint32_t num_tokens) {
  BlockHeader header{};
  header.magic = kBlockMagic;
  header.version = kBlockVersion;
  header.num_tokens = num_tokens;
  header.num_layers = geometry.num_layers;
  header.num_kv_heads = geometry.num_kv_heads;
  header.head_dim = geometry.head_dim;
  header.format = static_cast<uint32_t>(geometry.format.id);
  header.token_begin = token_begin;
  std::memcpy(extent.data(), &header, sizeof(header));
  return BlockLayout(geometry).num_pages;
}

// Writes a segment or a block, whichever has so many tokens.
inline uint32_t WriteImage(std::span<std::byte> extent, const KvGeometry& geometry,
                           uint64_t token_begin, uint32_t num_tokens) {
  return IsBlock(num_tokens) ? WriteBlock(extent, geometry, token_begin, num_tokens)
                             : WriteSegment(extent, geometry, token_begin, num_tokens);
}

}  // namespace retroinfer::kvstore
