#include "gpu_worker/attention/dense_zone_batch.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// In the order of DenseZoneBatch::Array.
std::array<size_t, 3> ArraySizes(int32_t max_batch) {
  const size_t rows = static_cast<size_t>(max_batch);
  return {rows * sizeof(DenseZone), rows * sizeof(DenseBlockId), rows * sizeof(int32_t)};
}

size_t BlocksOf(int64_t tokens) {
  return static_cast<size_t>((tokens + kDenseBlockTokens - 1) / kDenseBlockTokens);
}

}  // namespace

MemoryNeed DenseZoneBatch::MemoryOf(int32_t max_batch) {
  return {MemoryPurpose::kDenseKv, StagedArrays::Bytes(ArraySizes(max_batch))};
}

MemoryNeed DenseZoneBatch::MemoryOf(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                                    const BackendNeeds& backend) {
  return MemoryOf(max_batch) +
         MemoryNeed(MemoryPurpose::kActivations,
                    backend.decode_attention_scratch(max_batch, num_query_heads, head_dim));
}

absl::StatusOr<DenseZoneBatch> DenseZoneBatch::CreateToAttend(
    Device& device, AttentionOps& ops, Stream& stream, const DensePoolView& pool,
    BlockTables& tables, int32_t max_batch, int32_t num_query_heads) {
  ASSIGN_OR_RETURN(DenseZoneBatch batch, Create(device, ops, stream, pool, tables, max_batch));
  const auto head_dim = static_cast<int32_t>(pool.geometry.head_dim);
  ASSIGN_OR_RETURN(batch.scratch_, device.Allocate(ops.DecodeAttentionScratchBytes(
                                                       max_batch, num_query_heads, head_dim),
                                                   MemoryPurpose::kActivations));
  return batch;
}

absl::StatusOr<DenseZoneBatch> DenseZoneBatch::Create(Device& device, AttentionOps& ops,
                                                      Stream& stream, const DensePoolView& pool,
                                                      BlockTables& tables, int32_t max_batch) {
  DenseZoneBatch batch(device, ops, stream, pool, tables);
  ASSIGN_OR_RETURN(batch.arrays_,
                   StagedArrays::Create(device, ArraySizes(max_batch), MemoryPurpose::kDenseKv));
  return batch;
}

absl::Status DenseZoneBatch::FillFromPrompt(const SequenceKv& sequence, uint32_t layer,
                                            const LayerKv& kv) {
  const DeviceSpan<const int32_t> blocks = tables_->Dense(sequence.table_row);
  const PromptPart& part = sequence.part;
  FillDenseArgs fill{.in = kv, .pool = pool_, .layer = layer, .block_ids = blocks.first(1)};
  if (part.begin == 0) {
    fill.num_tokens = std::min<int64_t>(kSinkTokens, part.end);
    RETURN_IF_ERROR(ops_->FillDense(*stream_, fill));
  }
  const int64_t begin = std::max(sequence.window_begin, part.begin);
  if (part.end <= begin) return absl::OkStatus();
  fill.first_token = sequence.TakenRowOf(begin);
  fill.num_tokens = part.end - begin;
  const auto first = static_cast<size_t>((begin - sequence.window_begin) / kDenseBlockTokens);
  fill.block_ids = blocks.subspan(1 + first, BlocksOf(fill.num_tokens));
  return ops_->FillDense(*stream_, fill);
}

absl::Status DenseZoneBatch::ReadContext(const SequenceKv& sequence, uint32_t layer,
                                         const LayerKv& kv) {
  const DeviceSpan<const int32_t> blocks = tables_->Dense(sequence.table_row);
  ReadDenseArgs read{.pool = pool_, .layer = layer, .block_ids = blocks.first(1), .out = kv};
  read.num_tokens = kSinkTokens;
  RETURN_IF_ERROR(ops_->ReadDense(*stream_, read));
  read.first_token = kSinkTokens;
  read.num_tokens = sequence.part.begin - kSinkTokens;
  read.block_ids = blocks.subspan(1, BlocksOf(read.num_tokens));
  return ops_->ReadDense(*stream_, read);
}

absl::Status DenseZoneBatch::WriteTable(const SequenceKv& sequence) {
  return tables_->WriteDense(*stream_, sequence.table_row, sequence.dense_blocks);
}

absl::Status DenseZoneBatch::BeginStep(std::span<SequenceKv* const> batch) {
  const std::span<DenseZone> zones = arrays_.Host<DenseZone>(kZones);
  const std::span<DenseBlockId> blocks = arrays_.Host<DenseBlockId>(kBlocks);
  const std::span<int32_t> places = arrays_.Host<int32_t>(kPlaces);
  if (batch.size() > zones.size()) {
    return absl::InternalError(
        absl::StrCat("decode batch of ", batch.size(), " sequences, room for ", zones.size()));
  }
  batch_ = batch.size();
  int64_t ahead = 0;  // rows before this one that are the same sequence's
  for (size_t i = 0; i < batch_; ++i) {
    const SequenceKv& sequence = *batch[i];
    ahead = i > 0 && batch[i - 1] == &sequence ? ahead + 1 : 0;
    const int64_t position = sequence.num_tokens + ahead;
    int64_t place = position;
    size_t block = 0;
    if (position >= kSinkTokens) {
      const int64_t in_window = position - sequence.window_begin;
      block = 1 + static_cast<size_t>(in_window / kDenseBlockTokens);
      place = in_window % kDenseBlockTokens;
    }
    if (block >= sequence.dense_blocks.size()) {
      return absl::InternalError(absl::StrCat("sequence ", sequence.sequence_id, " of ", position,
                                              " tokens has outgrown its ",
                                              sequence.dense_blocks.size(), " dense blocks"));
    }
    blocks[i] = sequence.dense_blocks[block];
    places[i] = static_cast<int32_t>(place);
    zones[i] = {
        .block_ids = tables_->Dense(sequence.table_row).device_data(),
        .num_sink_tokens = static_cast<int32_t>(std::min<int64_t>(kSinkTokens, position + 1)),
        .num_window_tokens =
            static_cast<int32_t>(std::max<int64_t>(0, position + 1 - sequence.window_begin))};
  }
  return absl::OkStatus();
}

absl::Status DenseZoneBatch::Append(uint32_t layer, const MatrixView& keys,
                                    const MatrixView& values) {
  return ops_->AppendDense(*stream_,
                           {.keys = keys,
                            .values = values,
                            .pool = pool_,
                            .layer = layer,
                            .block_ids = arrays_.On<const DenseBlockId>(kBlocks).first(batch_),
                            .place_in_block = arrays_.On<const int32_t>(kPlaces).first(batch_)});
}

absl::Status DenseZoneBatch::DecodeLayer(uint32_t layer, const AttentionForm& form,
                                         const MatrixView& queries, const MatrixView& keys,
                                         const MatrixView& values, const MatrixView& out) {
  RETURN_IF_ERROR(Append(layer, keys, values));
  return ops_->DecodeAttention(*stream_, {.queries = queries,
                                          .pool = pool_,
                                          .layer = layer,
                                          .zones = zones(),
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

}  // namespace retroinfer
