#include "gpu_worker/attention/dense_zone_batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

template <typename T>
absl::Status UploadFirst(Device& device, Stream& stream, const std::vector<T>& host, size_t count,
                         const DeviceBuffer& buffer) {
  return device.Upload(stream, std::as_bytes(std::span(host).first(count)),
                       buffer.bytes().first(count * sizeof(T)));
}

}  // namespace

absl::StatusOr<DenseZoneBatch> DenseZoneBatch::Create(Device& device, Ops& ops, Stream& stream,
                                                      const DensePoolView& pool,
                                                      BlockTables& tables, int32_t max_batch) {
  DenseZoneBatch batch(device, ops, stream, pool, tables);
  const size_t rows = static_cast<size_t>(max_batch);
  batch.host_zones_.resize(rows);
  batch.host_blocks_.resize(rows);
  batch.host_places_.resize(rows);
  ASSIGN_OR_RETURN(batch.zones_,
                   device.Allocate(rows * sizeof(DenseZone), MemoryPurpose::kDenseKv));
  ASSIGN_OR_RETURN(batch.blocks_,
                   device.Allocate(rows * sizeof(DenseBlockId), MemoryPurpose::kDenseKv));
  ASSIGN_OR_RETURN(batch.places_, device.Allocate(rows * sizeof(int32_t), MemoryPurpose::kDenseKv));
  return batch;
}

absl::Status DenseZoneBatch::FillFromPrompt(const SequenceKv& sequence, uint32_t layer,
                                            const LayerKv& kv) {
  const DeviceSpan<const int32_t> blocks = tables_->Dense(sequence.table_row);
  FillDenseArgs fill{.in = kv, .pool = pool_, .layer = layer, .block_ids = blocks.first(1)};
  fill.num_tokens = std::min<int64_t>(kSinkTokens, sequence.prompt_tokens);
  RETURN_IF_ERROR(ops_->FillDense(*stream_, fill));
  const int64_t window = sequence.prompt_tokens - sequence.window_begin;
  if (window <= 0) return absl::OkStatus();
  fill.first_token = sequence.window_begin;
  fill.num_tokens = window;
  const size_t num_blocks =
      static_cast<size_t>((window + kDenseBlockTokens - 1) / kDenseBlockTokens);
  fill.block_ids = blocks.subspan(1, num_blocks);
  return ops_->FillDense(*stream_, fill);
}

absl::Status DenseZoneBatch::WriteTable(const SequenceKv& sequence) {
  return tables_->WriteDense(*stream_, sequence.table_row, sequence.dense_blocks);
}

absl::Status DenseZoneBatch::BeginStep(std::span<SequenceKv* const> batch) {
  batch_ = batch.size();
  if (batch_ > host_zones_.size()) {
    return absl::InternalError(
        absl::StrCat("decode batch of ", batch_, " sequences, room for ", host_zones_.size()));
  }
  for (size_t i = 0; i < batch_; ++i) {
    const SequenceKv& sequence = *batch[i];
    const int64_t position = sequence.num_tokens;
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
    host_blocks_[i] = sequence.dense_blocks[block];
    host_places_[i] = static_cast<int32_t>(place);
    host_zones_[i] = {
        .block_ids = tables_->Dense(sequence.table_row).device_data(),
        .num_sink_tokens = static_cast<int32_t>(std::min<int64_t>(kSinkTokens, position + 1)),
        .num_window_tokens =
            static_cast<int32_t>(std::max<int64_t>(0, position + 1 - sequence.window_begin))};
  }
  RETURN_IF_ERROR(UploadFirst(*device_, *stream_, host_zones_, batch_, zones_));
  RETURN_IF_ERROR(UploadFirst(*device_, *stream_, host_blocks_, batch_, blocks_));
  return UploadFirst(*device_, *stream_, host_places_, batch_, places_);
}

absl::Status DenseZoneBatch::Append(uint32_t layer, const MatrixView& keys,
                                    const MatrixView& values) {
  return ops_->AppendDense(*stream_, {.keys = keys,
                                      .values = values,
                                      .pool = pool_,
                                      .layer = layer,
                                      .block_ids = blocks_.as<const DenseBlockId>().first(batch_),
                                      .place_in_block = places_.as<const int32_t>().first(batch_)});
}

}  // namespace retroinfer
