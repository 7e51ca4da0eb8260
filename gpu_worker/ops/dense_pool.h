// Layout of the pool of dense blocks: device memory for KV that is attended exactly, in place.
//
// A *dense block* holds up to 64 consecutive tokens of one sequence, for all layers and KV heads:
//   [num_layers][num_kv_heads][64 / tokens_per_page] pages, stored as those of the arena are.
// Block 0 of a sequence holds its 4 sink tokens; block i >= 1 the 64 tokens from 4 + 64 * (i - 1).
// A sequence under wave attention gives its oldest blocks back when their tokens become a segment.
//
// Blocks that were saved lie in the arena as they lay here (common/kv/block_layout.h); a view of
// the arena's pages reads them there. Where memory has some of the arena's KV heads
// (common/kv/kv_head_range.h), such a view shows these alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/kv_geometry.h"
#include "common/kv/kv_head_range.h"
#include "gpu_worker/device/device_span.h"

namespace retroinfer {

using DenseBlockId = int32_t;
using MetaBlockId = int32_t;

struct DensePoolView {
  DeviceSpan<std::byte> bytes;
  KvGeometry geometry;
  size_t run_bytes = 0;    // RunBytes(geometry)
  size_t block_bytes = 0;  // from one DenseBlockId to the next
  KvHeadRange heads;       // of those that a block has, the ones that the geometry has

  DensePoolView() = default;
  DensePoolView(DeviceSpan<std::byte> pool_bytes, const KvGeometry& pool_geometry)
      : bytes(pool_bytes),
        geometry(pool_geometry),
        run_bytes(RunBytes(pool_geometry)),
        block_bytes(BlockBytes(pool_geometry)),
        heads(KvHeadRange{}.Of(pool_geometry)) {}

  // A view of the geometry's heads in blocks that have those of the arena.
  // REQUIRES: of_arena.Fits(pool_geometry).
  DensePoolView(DeviceSpan<std::byte> pool_bytes, const KvGeometry& pool_geometry,
                const KvHeadRange& of_arena)
      : bytes(pool_bytes),
        geometry(pool_geometry),
        run_bytes(RunBytes(pool_geometry)),
        block_bytes(BlockBytes(of_arena.ArenaOf(pool_geometry))),
        heads(of_arena.Of(pool_geometry)) {}

  // A view of blocks that lie anywhere in `pages`: the id of a block is the number of its first
  // page. REQUIRES: fewer than 2^31 pages.
  static DensePoolView OfPages(DeviceSpan<std::byte> pages, const KvGeometry& geometry,
                               const KvHeadRange& of_arena = {}) {
    DensePoolView view(pages, geometry, of_arena);
    view.block_bytes = geometry.page_bytes();
    return view;
  }

  // Bytes of one (layer, head) of a block.
  static constexpr size_t RunBytes(const KvGeometry& geometry) {
    const PageLayout page = geometry.page();
    return kDenseBlockTokens / page.tokens * page.bytes;
  }
  static constexpr size_t BlockBytes(const KvGeometry& geometry) {
    return size_t{geometry.num_layers} * geometry.num_kv_heads * RunBytes(geometry);
  }
  // Whether the whole block lies in `bytes`.
  bool Has(DenseBlockId block) const {
    return block >= 0 &&
           static_cast<size_t>(block) * block_bytes + BlockBytes(heads.ArenaOf(geometry)) <=
               bytes.size();
  }
  // Device address of the first page of (block, layer, head).
  std::byte* Run(DenseBlockId block, uint32_t layer, uint32_t head) const {
    const size_t run = size_t{layer} * heads.total + heads.first + head;
    return bytes.device_data() + static_cast<size_t>(block) * block_bytes + run * run_bytes;
  }
};

// The dense zone of one sequence of a batch: the sink (block_ids[0]) and a run of window blocks.
struct DenseZone {
  const DenseBlockId* block_ids;  // device; [0] is the sink's, then the window's, oldest first
  int32_t num_sink_tokens;        // 0 to 4
  int32_t num_window_tokens;      // tokens from the start of block_ids[1]
};
static_assert(kSinkTokens <= kDenseBlockTokens);

}  // namespace retroinfer
