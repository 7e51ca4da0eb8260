#include "gpu_worker/measuring/synthetic/drifting_queries.h"

#include <array>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer {

namespace {

std::array<size_t, 2> RowsSizes(uint32_t num_layers, int32_t max_batch) {
  const size_t of_layer = static_cast<size_t>(max_batch) * sizeof(int32_t);
  return {num_layers * of_layer, of_layer};
}

}  // namespace

size_t DriftingQueries::Bytes(const SyntheticShape& shape, DType activation_dtype,
                              int32_t max_batch) {
  const KvGeometry& geometry = shape.geometry;
  const size_t heads = static_cast<size_t>(shape.num_query_heads) * geometry.num_layers +
                       static_cast<size_t>(geometry.num_kv_heads);
  return StagedArrays::Bytes(RowsSizes(geometry.num_layers, max_batch)) +
         heads * static_cast<size_t>(geometry.head_dim) * static_cast<size_t>(max_batch) *
             DTypeBytes(activation_dtype);
}

absl::StatusOr<std::unique_ptr<DriftingQueries>> DriftingQueries::Create(
    Device& device, ModelOps& ops, Stream& stream, AttentionPolicy& policy,
    const SyntheticContext& context, uint32_t num_layers, int32_t max_batch) {
  auto drifting =
      absl::WrapUnique(new DriftingQueries(ops, stream, policy, context, num_layers, max_batch));
  ASSIGN_OR_RETURN(drifting->rows_, StagedArrays::Create(device, RowsSizes(num_layers, max_batch),
                                                         MemoryPurpose::kActivations));
  const DType dtype = ops.activation_dtype();
  const MatrixView& queries = context.queries();
  const MatrixView& keys = context.generated_keys();
  const int64_t query_rows = int64_t{num_layers} * max_batch;
  const int64_t key_rows = keys.rows == 0 ? 0 : max_batch;
  const size_t query_bytes = static_cast<size_t>(query_rows * queries.cols) * DTypeBytes(dtype);
  const size_t key_bytes = static_cast<size_t>(key_rows * keys.cols) * DTypeBytes(dtype);
  ASSIGN_OR_RETURN(drifting->buffer_,
                   device.Allocate(query_bytes + key_bytes, MemoryPurpose::kActivations));
  const DeviceSpan<std::byte> bytes = drifting->buffer_.bytes();
  drifting->queries_ = MatrixView::Dense(bytes.first(query_bytes), dtype, query_rows, queries.cols);
  drifting->keys_ =
      MatrixView::Dense(bytes.subspan(query_bytes, key_bytes), dtype, key_rows, keys.cols);
  return drifting;
}

absl::Status DriftingQueries::BeginStep(std::span<SequenceKv* const> batch) {
  const std::span<int32_t> rows = rows_.Host<int32_t>(0);
  const std::span<int32_t> keys = rows_.Host<int32_t>(1);
  num_rows_ = static_cast<int64_t>(batch.size());
  uint64_t position = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const bool is_next_of_same = i > 0 && batch[i] == batch[i - 1];
    position = is_next_of_same ? position + 1 : static_cast<uint64_t>(batch[i]->num_tokens);
    keys[i] = static_cast<int32_t>(position % kGeneratedTokens);
    for (uint32_t layer = 0; layer < num_layers_; ++layer) {
      rows[layer * batch.size() + i] = context_.QueryRow(batch[i]->sequence_id, layer, position);
    }
  }
  return ForwardingPolicy::BeginStep(batch);
}

absl::Status DriftingQueries::UploadStep() {
  RETURN_IF_ERROR(rows_.Upload(stream_));
  const auto rows = static_cast<size_t>(num_rows_);
  RETURN_IF_ERROR(
      ops_.Embedding(stream_, {.token_ids = rows_.On<const int32_t>(0).first(num_layers_ * rows),
                               .table = context_.queries(),
                               .out = queries_.Rows(0, num_layers_ * num_rows_)}));
  if (keys_.rows > 0) {
    RETURN_IF_ERROR(ops_.Embedding(stream_, {.token_ids = rows_.On<const int32_t>(1).first(rows),
                                             .table = context_.generated_keys(),
                                             .out = keys_.Rows(0, num_rows_)}));
  }
  return ForwardingPolicy::UploadStep();
}

absl::Status DriftingQueries::DecodeLayer(uint32_t layer, const AttentionForm& form,
                                          const MatrixView& /*queries*/, const MatrixView& keys,
                                          const MatrixView& values, const MatrixView& out) {
  return ForwardingPolicy::DecodeLayer(layer, form, queries_.Rows(layer * num_rows_, num_rows_),
                                       keys_.rows > 0 ? keys_.Rows(0, num_rows_) : keys, values,
                                       out);
}

}  // namespace retroinfer
