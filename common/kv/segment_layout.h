// Byte layout of a segment inside its extent of the arena. The same bytes are what a durable copy
// holds. Offsets count from the start of the extent; everything is little-endian.
//
//   L layers, H KV heads, n tokens, m clusters for each (layer, head) = n / 16, d head_dim, p bytes
//   of a page. Element types and scales are those of the KvFormat (kv_format.h): C, V bytes of an
//   array of 64 centroids, or value sums, with its scales. m is a multiple of 64.
//
//   OFFSET             SIZE         DESCRIPTION
//   0                  p            SegmentHeader, zero-padded
//   p                  12*L*H*m     ClusterEntry [L][H][m]
//   centroids_offset   L*H*m/64*C   centroids [L][H][m/64][64][d]: mean of the member keys
//   value_sums_offset  L*H*m/64*V   value sums [L][H][m/64][64][d]
//   order_offset       2*L*H*n      uint16 [L][H][n]: for each token in page order (cluster by
//                                   cluster, in the order of their entries) its index in the
//                                   segment
//   codes_offset       L*H*n/1024*K codes [L][H][n/1024] of tokens in page order, by 1024
//                                   (token_code.h); K is 0 in formats without them
//   tail_page*p        b*B          the window layers' tail: b dense blocks, only with W > 0
//                                   window layers
//   first_kv_page*p    p*pages      KV pages; clusters in any order, each a run of consecutive
//                                   pages, no two overlapping
//
// In formats that pack clusters the tokens of a (layer, head) fill whole pages in page order, and
// each cluster begins where the one before it ends, be it within a page. So a segment needs
// max_pages whatever its clusters are.
//
// Where several processes write a segment, each for some of its KV heads (kv_head_range.h), the
// pages of heads [first, first + count) of all layers lie in a region of their own: count * L *
// max_pages_per_head pages from first * L * max_pages_per_head behind first_kv_page. What a region
// does not need is zero, and used_pages is max_pages.
//
// The tail holds the newest tokens before the segment's end that a token behind that end may see in
// window layers: from KvGeometry::WindowBegin(end) on, wherever the segment begins, in dense blocks
// [W][H][64 / tokens of a page] of B bytes. b is KvGeometry::max_window_blocks(); what lies behind
// the last token is unspecified.
//
// In f32 and bf16, p is 2048 and an array of 64 vectors 256*d or 128*d bytes; an index in int8 has
// 64*d + 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/kv/cluster_place.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/kv_head_range.h"
#include "common/kv/token_code.h"

namespace retroinfer {

inline constexpr uint64_t kSegmentMagic = 0x31474553'4f525452;  // "RTROSEG1"
inline constexpr uint32_t kSegmentVersion = 2;                  // of models without window layers
inline constexpr uint32_t kSegmentVersionWithTail = 3;          // of models with window layers

constexpr uint32_t SegmentVersionOf(const KvGeometry& geometry) {
  return geometry.has_window_layers() ? kSegmentVersionWithTail : kSegmentVersion;
}

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_tokens;    // multiple of kDecodeSegmentTokens
  uint32_t num_clusters;  // for each (layer, head)
  uint32_t num_layers;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t format;       // KvFormatId
  uint32_t used_pages;   // pages of the extent in use, header and index included
  uint64_t token_begin;  // position in its sequence of the first token
  // Version 3; zeros in version 2.
  uint32_t num_window_layers;
  uint32_t window_tokens;
};
static_assert(sizeof(SegmentHeader) == 56 && std::is_trivially_copyable_v<SegmentHeader>);

// Where the tokens of one cluster are.
struct ClusterEntry {
  uint32_t first_place;  // from the start of the extent: see ClusterPlace
  uint32_t num_tokens;   // 0: an empty cluster, which has no page
  float radius;          // largest distance of a member key to the mean; finite, >= 0
};
static_assert(sizeof(ClusterEntry) == 12 && std::is_trivially_copyable_v<ClusterEntry>);

// Index of a token in its segment. For each (layer, head) the order table is a permutation of
// 0 .. num_tokens - 1.
using TokenOrder = uint16_t;
static_assert(kPrefillSegmentTokens - 1 <= UINT16_MAX);

// Pages [begin, end) of an extent.
struct KvRegion {
  uint32_t begin = 0;
  uint32_t end = 0;

  constexpr uint32_t num_pages() const { return end - begin; }
};

// Offsets of the parts of a segment of `num_tokens` tokens.
struct SegmentLayout {
  SegmentLayout(const KvGeometry& geometry, uint32_t num_tokens)
      : num_layers(geometry.num_layers),
        num_clusters(num_tokens / kTokensPerCluster),
        page_bytes(geometry.page_bytes()),
        centroids_bytes(
            num_clusters / kClustersPerMetaBlock *
            geometry.format.centroid.ArrayBytes(kClustersPerMetaBlock, geometry.head_dim)),
        value_sums_bytes(
            num_clusters / kClustersPerMetaBlock *
            geometry.format.value_sum.ArrayBytes(kClustersPerMetaBlock, geometry.head_dim)),
        codes_bytes(num_tokens / kDecodeSegmentTokens *
                    TokenCodeLayout(geometry.format, geometry.head_dim).bytes) {
    const size_t heads = size_t{geometry.num_layers} * geometry.num_kv_heads;
    clusters_offset = page_bytes;
    centroids_offset = clusters_offset + heads * num_clusters * sizeof(ClusterEntry);
    value_sums_offset = centroids_offset + heads * centroids_bytes;
    order_offset = value_sums_offset + heads * value_sums_bytes;
    codes_offset = order_offset + heads * num_clusters * kTokensPerCluster * sizeof(TokenOrder);
    index_end = codes_offset + heads * codes_bytes;
    tail_page = static_cast<uint32_t>((index_end + page_bytes - 1) / page_bytes);
    tail_block_bytes = size_t{geometry.num_window_layers} * geometry.num_kv_heads *
                       (kDenseBlockTokens / geometry.tokens_per_page()) * page_bytes;
    tail_bytes = geometry.max_window_blocks() * tail_block_bytes;
    first_kv_page = tail_page + static_cast<uint32_t>(tail_bytes / page_bytes);
    // Each cluster that is not packed wastes less than one page: m clusters of n tokens need at
    // most (n + m * (tokens_per_page - 1)) / tokens_per_page pages.
    const uint32_t per_page = geometry.tokens_per_page();
    const uint32_t wasted = geometry.format.packs_clusters ? 0 : num_clusters * (per_page - 1);
    max_pages_per_head = (num_tokens + wasted) / per_page;
    max_pages = first_kv_page + geometry.num_layers * geometry.num_kv_heads * max_pages_per_head;
  }

  // Where the KV pages of these heads lie, of the geometry's. REQUIRES: heads.total is the
  // geometry's num_kv_heads.
  constexpr KvRegion RegionOf(const KvHeadRange& heads) const {
    const uint32_t per_head = num_layers * max_pages_per_head;
    const uint32_t begin = first_kv_page + heads.first * per_head;
    return {begin, begin + heads.count * per_head};
  }

  uint32_t num_layers;
  uint32_t num_clusters;        // for each (layer, head)
  size_t page_bytes;            // of the format
  size_t centroids_bytes;       // of one (layer, head)
  size_t value_sums_bytes;      // of one (layer, head)
  size_t codes_bytes;           // of one (layer, head)
  size_t clusters_offset;       // bytes
  size_t centroids_offset;      // bytes
  size_t value_sums_offset;     // bytes
  size_t order_offset;          // bytes
  size_t codes_offset;          // bytes
  size_t index_end;             // bytes; zeros from here to tail_page
  uint32_t tail_page;           // pages; first_kv_page where there is no tail
  size_t tail_block_bytes;      // of one dense block of window layers
  size_t tail_bytes;            // of all of them
  uint32_t first_kv_page;       // pages
  uint32_t max_pages_per_head;  // pages of KV that one (layer, head) can need at most
  uint32_t max_pages;           // size of an extent that always suffices
};

}  // namespace retroinfer
