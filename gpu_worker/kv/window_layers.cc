// Invariants:
// * Tokens that are kept begin at KvGeometry::WindowBegin(position), a multiple of 128 and so the
//   beginning of a block, whether they are in a ring, in a tail or in a lane: what a row of a
//   prompt sums up, and in which order, does not depend on where its KV came from.
// * A decode step attends from the block on that holds the first token of the window, by the
//   position alone.
#include "gpu_worker/kv/window_layers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/kv/dense_block_parts.h"

namespace retroinfer {
namespace {

int64_t BlocksFor(int64_t tokens) { return (tokens + kDenseBlockTokens - 1) / kDenseBlockTokens; }

// What is kept, the tokens of a step, which may be in a block more, and the block of the first one
// that is kept.
int64_t RingBlocks(const KvGeometry& geometry, int32_t max_batch) {
  return geometry.max_window_blocks() + BlocksFor(max_batch) + 1;
}

size_t IdBytes(const WindowLayers::Sizes& sizes) {
  const auto rows = static_cast<size_t>(sizes.num_rows);
  const auto ring = static_cast<size_t>(RingBlocks(sizes.geometry, sizes.max_batch));
  return (rows * (1 + 2 * ring) + sizes.geometry.max_window_blocks()) * sizeof(DenseBlockId);
}

// In the order of WindowLayers::Array.
std::array<size_t, 3> ArraySizes(int32_t max_batch) {
  const auto rows = static_cast<size_t>(max_batch);
  return {rows * sizeof(DenseZone), rows * sizeof(DenseBlockId), rows * sizeof(int32_t)};
}

}  // namespace

size_t WindowLayers::RingBytes(const KvGeometry& geometry, int32_t max_batch) {
  if (!geometry.has_window_layers()) return 0;
  return static_cast<size_t>(RingBlocks(geometry, max_batch)) *
         DensePoolView::BlockBytes(geometry.of_window_layers());
}

MemoryNeed WindowLayers::MemoryOf(const Sizes& sizes, const BackendNeeds& backend) {
  MemoryNeed need;
  if (!sizes.geometry.has_window_layers()) return need;
  need[MemoryPurpose::kDenseKv] =
      static_cast<size_t>(sizes.num_rows) * RingBytes(sizes.geometry, sizes.max_batch) +
      IdBytes(sizes) + StagedArrays::Bytes(ArraySizes(sizes.max_batch));
  need[MemoryPurpose::kActivations] = backend.decode_attention_scratch(
      sizes.max_batch, sizes.num_query_heads, static_cast<int32_t>(sizes.geometry.head_dim));
  return need;
}

WindowLayers::WindowLayers(Device& device, AttentionOps& ops, Stream& stream, const Sizes& sizes)
    : device_(device),
      ops_(ops),
      stream_(stream),
      sizes_(sizes),
      ring_blocks_(RingBlocks(sizes.geometry, sizes.max_batch)),
      block_bytes_(DensePoolView::BlockBytes(sizes.geometry.of_window_layers())) {}

absl::StatusOr<std::unique_ptr<WindowLayers>> WindowLayers::Create(Device& device,
                                                                   AttentionOps& ops,
                                                                   Stream& stream,
                                                                   const Sizes& sizes) {
  RI_CHECK(sizes.geometry.has_window_layers());
  auto layers = absl::WrapUnique(new WindowLayers(device, ops, stream, sizes));
  const auto rows = static_cast<size_t>(sizes.num_rows);
  ASSIGN_OR_RETURN(layers->pool_buffer_,
                   device.Allocate(rows * layers->ring_bytes(), MemoryPurpose::kDenseKv));
  layers->pool_ = {layers->pool_buffer_.bytes(), sizes.geometry.of_window_layers()};
  ASSIGN_OR_RETURN(layers->ids_, device.Allocate(IdBytes(sizes), MemoryPurpose::kDenseKv));
  ASSIGN_OR_RETURN(layers->arrays_, StagedArrays::Create(device, ArraySizes(sizes.max_batch),
                                                         MemoryPurpose::kDenseKv));
  ASSIGN_OR_RETURN(layers->scratch_,
                   device.Allocate(ops.DecodeAttentionScratchBytes(
                                       sizes.max_batch, sizes.num_query_heads,
                                       static_cast<int32_t>(sizes.geometry.head_dim)),
                                   MemoryPurpose::kActivations));
  const int64_t ring = layers->ring_blocks_;
  std::vector<DenseBlockId> ids;
  for (int64_t row = 0; row < sizes.num_rows; ++row) {
    ids.push_back(0);
    for (int64_t i = 0; i < 2 * ring; ++i) {
      ids.push_back(static_cast<DenseBlockId>(row * ring + i % ring));
    }
  }
  for (uint32_t i = 0; i < sizes.geometry.max_window_blocks(); ++i) {
    ids.push_back(static_cast<DenseBlockId>(i));
  }
  RETURN_IF_ERROR(device.Upload(stream, std::as_bytes(std::span(ids)), layers->ids_.bytes()));
  RETURN_IF_ERROR(stream.Synchronize());
  return layers;
}

DeviceSpan<const DenseBlockId> WindowLayers::BlocksFrom(int32_t table_row, int64_t position) const {
  const int64_t first = int64_t{table_row} * (1 + 2 * ring_blocks_) + 1 + RingPlace(position);
  return ids_.as<const DenseBlockId>().subspan(static_cast<size_t>(first),
                                               static_cast<size_t>(ring_blocks_));
}

// --- Prompts

absl::Status WindowLayers::TakeLayer(const SequenceKv& sequence, uint32_t layer,
                                     const LayerKv& kv) {
  const int64_t begin = sizes_.geometry.WindowBegin(sequence.part.end);
  return ops_.FillDense(stream_, {.in = kv,
                                  .first_token = begin,
                                  .num_tokens = sequence.part.end - begin,
                                  .pool = pool_,
                                  .layer = layer,
                                  .block_ids = BlocksFrom(sequence.table_row, begin)});
}

absl::Status WindowLayers::ReadContext(const SequenceKv& sequence, uint32_t layer,
                                       const LayerKv& kv) {
  const int64_t begin = sizes_.geometry.WindowBegin(sequence.part.begin);
  return ops_.ReadDense(stream_, {.pool = pool_,
                                  .layer = layer,
                                  .block_ids = BlocksFrom(sequence.table_row, begin),
                                  .num_tokens = sequence.part.begin - begin,
                                  .out = kv,
                                  .first_token = begin});
}

absl::Status WindowLayers::WriteTail(uint32_t layer, const LayerKv& kv, int64_t end,
                                     DeviceSpan<std::byte> tail) {
  const int64_t begin = sizes_.geometry.WindowBegin(end);
  const size_t num_blocks = sizes_.geometry.max_window_blocks();
  const DeviceSpan<const DenseBlockId> ids = ids_.as<const DenseBlockId>();
  return ops_.FillDense(stream_, {.in = kv,
                                  .first_token = begin,
                                  .num_tokens = end - begin,
                                  .pool = TailPool(tail),
                                  .layer = layer,
                                  .block_ids = ids.subspan(ids.size() - num_blocks, num_blocks)});
}

absl::Status WindowLayers::ReadTail(uint32_t layer, const LayerKv& kv, int64_t end,
                                    DeviceSpan<std::byte> tail) {
  const int64_t begin = sizes_.geometry.WindowBegin(end);
  const size_t num_blocks = sizes_.geometry.max_window_blocks();
  const DeviceSpan<const DenseBlockId> ids = ids_.as<const DenseBlockId>();
  return ops_.ReadDense(stream_, {.pool = TailPool(tail),
                                  .layer = layer,
                                  .block_ids = ids.subspan(ids.size() - num_blocks, num_blocks),
                                  .num_tokens = end - begin,
                                  .out = kv,
                                  .first_token = begin});
}

// --- Generated tokens

bool WindowLayers::Holds(int64_t num_tokens, int64_t end) const {
  const int64_t first = sizes_.geometry.WindowBegin(end) / kDenseBlockTokens;
  const int64_t last = std::max<int64_t>(0, num_tokens - 1) / kDenseBlockTokens;
  return last - first < ring_blocks_;
}

absl::Status WindowLayers::SaveTail(const SequenceKv& sequence, int64_t end,
                                    std::span<std::byte> tail) {
  RI_CHECK(end <= sequence.num_tokens && Holds(sequence.num_tokens, end));
  const DeviceSpan<std::byte> ring = Ring(sequence.table_row);
  const KvGeometry& geometry = pool_.geometry;
  const std::vector<DenseBlockPart> parts = DenseBlockParts(geometry, sizes_.heads);
  const size_t tail_block_bytes = DensePoolView::BlockBytes(sizes_.heads.ArenaOf(geometry));
  size_t to = 0;
  for (int64_t token = sizes_.geometry.WindowBegin(end); token < end; token += kDenseBlockTokens) {
    const size_t from = static_cast<size_t>(RingPlace(token)) * block_bytes_;
    for (const DenseBlockPart& part : parts) {
      RETURN_IF_ERROR(device_.Download(stream_, ring.subspan(from + part.in_memory, part.bytes),
                                       tail.subspan(to + part.in_arena, part.bytes)));
    }
    to += tail_block_bytes;
  }
  return absl::OkStatus();
}

absl::Status WindowLayers::BeginStep(std::span<SequenceKv* const> batch) {
  const std::span<DenseZone> zones = arrays_.Host<DenseZone>(kZones);
  const std::span<DenseBlockId> blocks = arrays_.Host<DenseBlockId>(kBlocks);
  const std::span<int32_t> places = arrays_.Host<int32_t>(kPlaces);
  if (batch.size() > zones.size()) {
    return absl::InternalError(
        absl::StrCat("window layers: a step of ", batch.size(), " rows, room for ", zones.size()));
  }
  batch_ = batch.size();
  int64_t ahead = 0;  // rows before this one that are the same sequence's
  for (size_t i = 0; i < batch_; ++i) {
    const SequenceKv& sequence = *batch[i];
    ahead = i > 0 && batch[i - 1] == &sequence ? ahead + 1 : 0;
    const int64_t position = sequence.num_tokens + ahead;
    const int64_t first_seen =
        std::max<int64_t>(0, position + 1 - int64_t{sizes_.geometry.window_tokens});
    const int64_t begin = first_seen / kDenseBlockTokens * kDenseBlockTokens;
    blocks[i] = static_cast<DenseBlockId>(sequence.table_row * ring_blocks_ + RingPlace(position));
    places[i] = static_cast<int32_t>(position % kDenseBlockTokens);
    zones[i] = {.block_ids = BlocksFrom(sequence.table_row, begin).device_data() - 1,
                .num_sink_tokens = 0,
                .num_window_tokens = static_cast<int32_t>(position + 1 - begin)};
  }
  return absl::OkStatus();
}

absl::Status WindowLayers::DecodeLayer(uint32_t layer, const AttentionForm& form,
                                       const MatrixView& queries, const MatrixView& keys,
                                       const MatrixView& values, const MatrixView& out) {
  RETURN_IF_ERROR(ops_.AppendDense(
      stream_, {.keys = keys,
                .values = values,
                .pool = pool_,
                .layer = layer,
                .block_ids = arrays_.On<const DenseBlockId>(kBlocks).first(batch_),
                .place_in_block = arrays_.On<const int32_t>(kPlaces).first(batch_)}));
  return ops_.DecodeAttention(stream_, {.queries = queries,
                                        .pool = pool_,
                                        .layer = layer,
                                        .zones = arrays_.On<const DenseZone>(kZones).first(batch_),
                                        .pages = {},
                                        .num_pages = {},
                                        .max_pages = 0,
                                        .estimate = {},
                                        .scale = form.scale,
                                        .window = form.window,
                                        .sinks = form.sinks,
                                        .out = out,
                                        .scratch = scratch_.bytes()});
}

double WindowLayers::BytesRead(int64_t num_tokens) const {
  return BytesOfAll(std::min<int64_t>(num_tokens, sizes_.geometry.window_tokens));
}

double WindowLayers::BytesOfAll(int64_t num_tokens) const {
  return static_cast<double>(num_tokens) * static_cast<double>(pool_.geometry.token_bytes());
}

}  // namespace retroinfer
