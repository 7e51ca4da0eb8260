// The KV of window layers (layer_map.h): for each row of the block tables, that is for each live
// sequence, a ring of dense blocks with the newest tokens. A ring is as long as the longest window
// and a few blocks more, whatever the length of the text, and belongs to its row for good, so there
// is nothing to reserve or to give back.
//
// Token t of a sequence is in block t / 64 of the text, which lies at place t / 64 % blocks of the
// ring: what a ring holds depends on the text alone, not on the row, so a resumed sequence may have
// another row.
//
// A segment has a *tail* (common/kv/segment_layout.h): what window layers hold at its end. Prompts
// that begin with the segment read it, instead of computing the window layers' tokens again.
//
// Threads: the engine's thread.
// Owns:    the rings, and the device memory of a step. Device, operations and stream outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/kv_head_range.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/attention/attention_form.h"
#include "gpu_worker/ops/attention/attention_ops.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/dense_pool.h"

namespace retroinfer {

class WindowLayers {
 public:
  struct Sizes {
    KvGeometry geometry;   // with window layers
    int32_t num_rows = 0;  // of the block tables
    int32_t max_batch = 0;
    int32_t num_query_heads = 0;
    KvHeadRange heads;  // of the arena's, that `geometry` has
  };

  // REQUIRES: sizes.geometry.has_window_layers().
  static absl::StatusOr<std::unique_ptr<WindowLayers>> Create(Device& device, AttentionOps& ops,
                                                              Stream& stream, const Sizes& sizes);
  // Nothing where the geometry has no window layers.
  static MemoryNeed MemoryOf(const Sizes& sizes, const BackendNeeds& backend);
  // Bytes of one ring: of the host memory that a suspended sequence needs for it.
  static size_t RingBytes(const KvGeometry& geometry, int32_t max_batch);

  // --- Prompts. Rows of `kv` are positions; layers count from 0 among window layers.

  // A part of the prompt is computed: puts the newest of its tokens, and of those before it, into
  // the ring. REQUIRES: `kv` has tokens [WindowBegin(part.end), part.end).
  absl::Status TakeLayer(const SequenceKv& sequence, uint32_t layer, const LayerKv& kv);
  // The reverse, before the next part: rows [WindowBegin(part.begin), part.begin).
  // REQUIRES: nothing was taken since for another part.
  absl::Status ReadContext(const SequenceKv& sequence, uint32_t layer, const LayerKv& kv);
  // Between rows [WindowBegin(end), end) of `kv` and the tail of a segment that ends at `end`, of
  // the heads that memory has; `tail` is that part of the segment's extent, as the device sees it.
  absl::Status WriteTail(uint32_t layer, const LayerKv& kv, int64_t end,
                         DeviceSpan<std::byte> tail);
  absl::Status ReadTail(uint32_t layer, const LayerKv& kv, int64_t end, DeviceSpan<std::byte> tail);

  // --- Generated tokens

  // Whether the ring still has what a tail at `end`, or a token at that position, needs.
  bool Holds(int64_t num_tokens, int64_t end) const;
  // Copies all layers from the ring to the tail of a segment that ends at `end`; `tail` as the host
  // sees it; only parts of the heads that memory has are written. REQUIRES: end <=
  // sequence.num_tokens; Holds(sequence.num_tokens, end).
  absl::Status SaveTail(const SequenceKv& sequence, int64_t end, std::span<std::byte> tail);

  // Places the next token of each sequence (the next k of one that is there k times, in
  // neighbouring rows). REQUIRES: batch.size() <= max_batch.
  absl::Status BeginStep(std::span<SequenceKv* const> batch);
  absl::Status UploadStep() { return arrays_.Upload(stream_); }
  // One layer of the step: appends, and attends to form.window tokens.
  // REQUIRES: 0 < form.window <= geometry.window_tokens.
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values, const MatrixView& out);
  // Bytes that a step reads for a sequence of `num_tokens` tokens, and what it would read if the
  // layers saw all.
  double BytesRead(int64_t num_tokens) const;
  double BytesOfAll(int64_t num_tokens) const;

  // --- Suspension

  size_t ring_bytes() const { return static_cast<size_t>(ring_blocks_) * block_bytes_; }
  // The row's ring, for copies.
  DeviceSpan<std::byte> Ring(int32_t table_row) const {
    return pool_buffer_.bytes().subspan(static_cast<size_t>(table_row) * ring_bytes(),
                                        ring_bytes());
  }

  const KvGeometry& geometry() const { return sizes_.geometry; }
  KvGeometry arena_geometry() const { return sizes_.heads.ArenaOf(sizes_.geometry); }

 private:
  enum Array : size_t { kZones, kBlocks, kPlaces };

  WindowLayers(Device& device, AttentionOps& ops, Stream& stream, const Sizes& sizes);

  int64_t RingPlace(int64_t position) const { return position / kDenseBlockTokens % ring_blocks_; }
  // A segment's tail, as a pool of dense blocks with ids from 0 on.
  DensePoolView TailPool(DeviceSpan<std::byte> tail) const {
    return {tail, pool_.geometry, sizes_.heads};
  }
  // Block ids of the row from the one on that holds `position`, as many as the ring has.
  DeviceSpan<const DenseBlockId> BlocksFrom(int32_t table_row, int64_t position) const;

  Device& device_;
  AttentionOps& ops_;
  Stream& stream_;
  const Sizes sizes_;
  const int64_t ring_blocks_;
  const size_t block_bytes_;
  DensePoolView pool_;
  DeviceBuffer pool_buffer_;  // [rows][ring blocks] dense blocks of window layers
  // For each row one id that is not used and two turns of its ring, so that any run of blocks is a
  // part of it; then 0, 1, 2, ..., the ids of a tail.
  DeviceBuffer ids_;
  StagedArrays arrays_;  // [max_batch] each, in the order of Array
  DeviceBuffer scratch_;
  size_t batch_ = 0;
};

}  // namespace retroinfer
