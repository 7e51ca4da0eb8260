// Layout of the pool of meta blocks: the device side of the wave index.
//
// A *meta block* holds 64 clusters for every layer and KV head. For each (layer, head), contiguous:
//   centroids   [64][d]  mean of the members' keys, stored as the KvFormat says: scales behind them
//   value sums  [64][d]  the same
//   entries     [64]     MetaEntry
// and where tokens have codes (token_code.h):
//   first codes [64]     int32: the place of each cluster's first token in its segment's page
//   order,
//                        less 1024 for each block of the segment before this one
//   codes                of 1024 tokens: block b of a segment has those at places 1024 b on
// So the codes of a cluster may lie in other blocks of its segment; these are neighbours in the
// index, in their order. CodePlaceOf says where.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/cluster_place.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/token_code.h"
#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/dense_pool.h"

namespace retroinfer {

// Where a cluster's tokens lie in the arena, and how far they spread.
struct MetaEntry {
  uint32_t first_place;  // from the start of the arena: see ClusterPlace
  uint32_t num_tokens;   // 0: empty, masked everywhere
  float radius;          // largest distance of a member key to the centroid
};

// Where the code of a token lies.
struct CodePlace {
  int32_t block;      // among the blocks of the index
  uint32_t in_block;  // among its 1024 tokens
};

// Of token `token` of a cluster in block `block` of an index, with this first code.
constexpr CodePlace CodePlaceOf(int32_t block, int32_t first_code, uint32_t token) {
  constexpr auto kTokens = static_cast<int32_t>(kDecodeSegmentTokens);
  const int32_t at = first_code + static_cast<int32_t>(token);
  const int32_t in_block = at & (kTokens - 1);  // of negative numbers, too
  return {block + (at - in_block) / kTokens, static_cast<uint32_t>(in_block)};
}

struct MetaPoolView {
  DeviceSpan<std::byte> bytes;
  KvGeometry geometry;
  // Of what belongs to one (layer, head) of a block, from its centroids on.
  size_t value_sums_offset = 0;
  size_t entries_offset = 0;
  size_t first_codes_offset = 0;  // where tokens have codes, as the next
  size_t codes_offset = 0;
  size_t run_bytes = 0;

  MetaPoolView() = default;
  MetaPoolView(DeviceSpan<std::byte> pool_bytes, const KvGeometry& pool_geometry)
      : bytes(pool_bytes),
        geometry(pool_geometry),
        value_sums_offset(CentroidsBytes(geometry)),
        entries_offset(value_sums_offset + ValueSumsBytes(geometry)),
        first_codes_offset(entries_offset + kClustersPerMetaBlock * sizeof(MetaEntry)),
        codes_offset(first_codes_offset + kClustersPerMetaBlock * sizeof(int32_t)),
        run_bytes(RunBytes(geometry)) {}

  // Of the centroids, or value sums, of 64 clusters of one (layer, head).
  static constexpr size_t CentroidsBytes(const KvGeometry& geometry) {
    return geometry.format.centroid.ArrayBytes(kClustersPerMetaBlock, geometry.head_dim);
  }
  static constexpr size_t ValueSumsBytes(const KvGeometry& geometry) {
    return geometry.format.value_sum.ArrayBytes(kClustersPerMetaBlock, geometry.head_dim);
  }
  // Of the first codes and the codes.
  static constexpr size_t CodesBytes(const KvGeometry& geometry) {
    const size_t codes = TokenCodeLayout(geometry.format, geometry.head_dim).bytes;
    return codes == 0 ? 0 : kClustersPerMetaBlock * sizeof(int32_t) + codes;
  }
  static constexpr size_t RunBytes(const KvGeometry& geometry) {
    return CentroidsBytes(geometry) + ValueSumsBytes(geometry) +
           kClustersPerMetaBlock * sizeof(MetaEntry) + CodesBytes(geometry);
  }
  static constexpr size_t BlockBytes(const KvGeometry& geometry) {
    return size_t{geometry.num_layers} * geometry.num_kv_heads * RunBytes(geometry);
  }
  uint32_t num_blocks() const { return static_cast<uint32_t>(bytes.size() / BlockBytes(geometry)); }
  std::byte* Centroids(MetaBlockId block, uint32_t layer, uint32_t head) const {
    const size_t run =
        (static_cast<size_t>(block) * geometry.num_layers + layer) * geometry.num_kv_heads + head;
    return bytes.device_data() + run * run_bytes;
  }
  std::byte* ValueSums(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return Centroids(block, layer, head) + value_sums_offset;
  }
  MetaEntry* Entries(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return reinterpret_cast<MetaEntry*>(Centroids(block, layer, head) + entries_offset);
  }
  // REQUIRES: tokens have codes; so for the next.
  int32_t* FirstCodes(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return reinterpret_cast<int32_t*>(Centroids(block, layer, head) + first_codes_offset);
  }
  std::byte* Codes(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return Centroids(block, layer, head) + codes_offset;
  }
};

// The index of one sequence of a batch.
struct MetaIndexView {
  const MetaBlockId* block_ids;  // device, [num_blocks]
  int32_t num_blocks;            // 64 clusters each, empty ones included
};

}  // namespace retroinfer
