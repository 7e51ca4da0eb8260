// Puts the keys and values of one layer of a segment back in the order of the text: the reverse of
// WriteSegment, bit by bit. Bound by the copy: reads and writes each KV byte of the layer once.
//
// Entries and indexes that point outside of the extent or the segment are skipped: bytes that
// another process can reach are never an address.
#pragma once

#include <cstdint>

#include "common/kv/segment_layout.h"
#include "gpu_worker/ops/attention/layer_kv.h"

namespace retroinfer {

struct ReadSegmentLayerArgs {
  DeviceSpan<const std::byte> extent;  // pages of the arena, from the segment's header on
  KvGeometry geometry;
  KvHeadRange heads;  // of the arena's, that `geometry` has
  uint32_t num_tokens = 0;
  uint32_t layer = 0;
  LayerKv out;
  int64_t first_token = 0;  // row of `out` for the segment's first token
};

}  // namespace retroinfer
