#include "gpu_worker/engine/prefill_lane.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<PrefillLane>> PrefillLane::Create(const Parts& parts,
                                                                 const KvGeometry& geometry,
                                                                 int64_t max_tokens,
                                                                 int64_t max_rows) {
  auto lane = absl::WrapUnique(new PrefillLane(parts, geometry, max_tokens, max_rows));
  Device& device = *parts.device;
  const Transformer& model = *parts.model;
  ASSIGN_OR_RETURN(lane->token_ids_,
                   device.Allocate(static_cast<size_t>(max_rows) * sizeof(int32_t),
                                   MemoryPurpose::kActivations));
  const size_t hidden_bytes = static_cast<size_t>(max_tokens * model.config().hidden_size) *
                              DTypeBytes(model.activation_dtype());
  ASSIGN_OR_RETURN(lane->hidden_, device.Allocate(hidden_bytes, MemoryPurpose::kActivations));
  const size_t kv_bytes =
      2 * size_t{geometry.num_kv_heads} * static_cast<size_t>(max_tokens) * geometry.vector_bytes();
  for (DeviceBuffer& kv : lane->kv_) {
    ASSIGN_OR_RETURN(kv, device.Allocate(kv_bytes, MemoryPurpose::kActivations));
  }
  for (auto& event : lane->slice_computed_) {
    ASSIGN_OR_RETURN(event, device.CreateEvent());
  }
  return lane;
}

void PrefillLane::Begin(std::span<const int32_t> prompt, SequenceKv& sequence,
                        AttentionPolicy& policy) {
  RI_CHECK(!busy() && !prompt.empty() && static_cast<int64_t>(prompt.size()) <= max_tokens_);
  prompt_ = prompt;
  sequence_ = &sequence;
  policy_ = &policy;
  layer_ = 0;
  next_token_ = 0;
}

LayerKv PrefillLane::KvOfLayer(uint32_t layer) const {
  const DeviceBuffer& buffer = kv_[layer % 2];
  return {.keys = buffer.bytes().device_data(),
          .values = buffer.bytes().device_data() + buffer.size_bytes() / 2,
          .num_kv_heads = geometry_.num_kv_heads,
          .head_dim = geometry_.head_dim,
          .capacity = max_tokens_,
          .dtype = geometry_.dtype};
}

absl::Status PrefillLane::RunChunk(int64_t rows) {
  const MatrixView hidden = MatrixView::Dense(hidden_.bytes(), parts_.model->activation_dtype(),
                                              max_tokens_, parts_.model->config().hidden_size)
                                .Rows(next_token_, rows);
  if (layer_ == 0) {
    const auto ids = prompt_.subspan(static_cast<size_t>(next_token_), static_cast<size_t>(rows));
    RETURN_IF_ERROR(parts_.device->Upload(*parts_.stream, std::as_bytes(ids),
                                          token_ids_.bytes().first(ids.size_bytes())));
    RETURN_IF_ERROR(parts_.model->Embed(*parts_.stream,
                                        token_ids_.as<const int32_t>().first(ids.size()), hidden));
  }
  // The last layer's rows have no reader but the prompt's last one.
  const bool is_last_layer = layer_ + 1 == geometry_.num_layers;
  const bool has_last_token = next_token_ + rows == static_cast<int64_t>(prompt_.size());
  const int64_t num_outputs = is_last_layer ? int64_t{has_last_token} : rows;
  return parts_.model->PrefillLayer(*parts_.stream, layer_, hidden, next_token_, KvOfLayer(layer_),
                                    num_outputs);
}

absl::Status PrefillLane::ReadCachedTokens() {
  const LayerKv kv = KvOfLayer(layer_);
  for (size_t i = 0; i < sequence_->num_cached_segments; ++i) {
    const Extent& extent = sequence_->extents[i];
    const PlannedSegment& segment = sequence_->prefix.segments[i];
    RETURN_IF_ERROR(parts_.ops->ReadSegmentLayer(
        *parts_.stream, {.extent = parts_.arena.subspan(size_t{extent.first_page} * kPageBytes,
                                                        size_t{extent.num_pages} * kPageBytes),
                         .geometry = geometry_,
                         .num_tokens = segment.num_tokens,
                         .layer = layer_,
                         .out = kv,
                         .first_token = segment.token_begin}));
  }
  next_token_ = sequence_->cached_end;
  return absl::OkStatus();
}

absl::StatusOr<PrefillLane::Outcome> PrefillLane::RunSlice(int64_t rows, const MatrixView& logits) {
  RI_CHECK(busy());
  Event& computed = *slice_computed_[num_slices_ % kSlicesAhead];
  ASSIGN_OR_RETURN(const bool keeps_up, parts_.device->IsDone(computed));
  if (!keeps_up) return Outcome::kBlocked;
  ASSIGN_OR_RETURN(const Outcome outcome, Advance(rows, logits));
  if (outcome == Outcome::kBlocked) return outcome;
  RETURN_IF_ERROR(parts_.stream->Record(computed));
  ++num_slices_;
  return outcome;
}

absl::StatusOr<PrefillLane::Outcome> PrefillLane::Advance(int64_t rows, const MatrixView& logits) {
  if (next_token_ == 0 && layer_ >= 2) {
    ASSIGN_OR_RETURN(const bool taken, policy_->LayerTaken(*sequence_, layer_ - 2));
    if (!taken) return Outcome::kBlocked;
  }
  if (next_token_ == 0 && sequence_->num_cached_segments > 0) {
    RETURN_IF_ERROR(RunChunk(kSinkTokens));
    RETURN_IF_ERROR(ReadCachedTokens());
  }
  const int64_t total = static_cast<int64_t>(prompt_.size());
  const int64_t count = std::min({rows, max_rows_, total - next_token_});
  RETURN_IF_ERROR(RunChunk(count));
  next_token_ += count;
  if (next_token_ < total) return Outcome::kWorked;

  RETURN_IF_ERROR(policy_->TakeLayer(*sequence_, layer_, KvOfLayer(layer_)));
  ++layer_;
  next_token_ = 0;
  if (layer_ < geometry_.num_layers) return Outcome::kWorked;
  const MatrixView last = MatrixView::Dense(hidden_.bytes(), parts_.model->activation_dtype(),
                                            max_tokens_, parts_.model->config().hidden_size)
                              .Rows(total - 1, 1);
  RETURN_IF_ERROR(parts_.model->Logits(*parts_.stream, last, logits));
  return Outcome::kDone;
}

int64_t PrefillLane::processed_tokens() const {
  const int64_t cached = sequence_->cached_tokens();
  const int64_t to_compute = static_cast<int64_t>(prompt_.size()) - cached;
  const int64_t of_layer = next_token_ == 0 ? 0 : next_token_ - cached;
  return cached + (int64_t{layer_} * to_compute + of_layer) / geometry_.num_layers;
}

}  // namespace retroinfer
