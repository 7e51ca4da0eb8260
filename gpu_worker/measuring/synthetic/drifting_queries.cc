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

size_t DriftingQueries::Bytes(uint32_t num_layers, int32_t max_batch) {
  return StagedArrays::Bytes(RowsSizes(num_layers, max_batch));
}

absl::StatusOr<std::unique_ptr<DriftingQueries>> DriftingQueries::Create(
    Device& device, ModelOps& ops, Stream& stream, AttentionPolicy& policy,
    const SyntheticContext& context, uint32_t num_layers, int32_t max_batch) {
  auto drifting =
      absl::WrapUnique(new DriftingQueries(ops, stream, policy, context, num_layers, max_batch));
  ASSIGN_OR_RETURN(drifting->rows_, StagedArrays::Create(device, RowsSizes(num_layers, max_batch),
                                                         MemoryPurpose::kActivations));
  return drifting;
}

absl::Status DriftingQueries::BeginStep(std::span<SequenceKv* const> batch) {
  const std::span<int32_t> rows = rows_.Host<int32_t>(0);
  const std::span<int32_t> keys = rows_.Host<int32_t>(1);
  uint64_t position = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const bool is_next_of_same = i > 0 && batch[i] == batch[i - 1];
    position = is_next_of_same ? position + 1 : static_cast<uint64_t>(batch[i]->num_tokens);
    keys[i] = static_cast<int32_t>(position % kGeneratedTokens);
    for (uint32_t layer = 0; layer < num_layers_; ++layer) {
      rows[layer * static_cast<size_t>(max_batch_) + i] =
          context_.QueryRow(batch[i]->sequence_id, layer, position);
    }
  }
  return ForwardingPolicy::BeginStep(batch);
}

absl::Status DriftingQueries::UploadStep() {
  RETURN_IF_ERROR(rows_.Upload(stream_));
  return ForwardingPolicy::UploadStep();
}

absl::Status DriftingQueries::DecodeLayer(uint32_t layer, const AttentionForm& form,
                                          const MatrixView& queries, const MatrixView& keys,
                                          const MatrixView& values, const MatrixView& out) {
  const DeviceSpan<const int32_t> rows = rows_.On<const int32_t>(0).subspan(
      size_t{layer} * static_cast<size_t>(max_batch_), static_cast<size_t>(queries.rows));
  RETURN_IF_ERROR(
      ops_.Embedding(stream_, {.token_ids = rows, .table = context_.queries(), .out = queries}));
  if (context_.generated_keys().rows != 0) {
    const DeviceSpan<const int32_t> of_keys =
        rows_.On<const int32_t>(1).first(static_cast<size_t>(keys.rows));
    RETURN_IF_ERROR(ops_.Embedding(
        stream_, {.token_ids = of_keys, .table = context_.generated_keys(), .out = keys}));
  }
  return ForwardingPolicy::DecodeLayer(layer, form, queries, keys, values, out);
}

}  // namespace retroinfer
