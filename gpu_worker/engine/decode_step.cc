#include "gpu_worker/engine/decode_step.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer {

DecodeStep::DecodeStep(Device& device, Stream& stream, Transformer& model, Sampler& sampler,
                       int32_t max_batch)
    : device_(device),
      stream_(stream),
      model_(model),
      sampler_(sampler),
      host_tokens_(static_cast<size_t>(max_batch)),
      host_positions_(static_cast<size_t>(max_batch)) {
  sequences_.reserve(static_cast<size_t>(max_batch));
  sampling_.reserve(static_cast<size_t>(max_batch));
  policies_.reserve(static_cast<size_t>(max_batch));
}

absl::StatusOr<std::unique_ptr<DecodeStep>> DecodeStep::Create(Device& device, Stream& stream,
                                                               Transformer& model, Sampler& sampler,
                                                               int32_t max_batch) {
  auto step = absl::WrapUnique(new DecodeStep(device, stream, model, sampler, max_batch));
  const size_t bytes = static_cast<size_t>(max_batch) * sizeof(int32_t);
  ASSIGN_OR_RETURN(step->token_ids_, device.Allocate(bytes, MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(step->positions_, device.Allocate(bytes, MemoryPurpose::kActivations));
  return step;
}

absl::Status DecodeStep::Begin(std::span<LiveRequest*> batch) {
  std::sort(batch.begin(), batch.end(), [](const LiveRequest* a, const LiveRequest* b) {
    return std::pair(a->policy, a->kv.sequence_id) < std::pair(b->policy, b->kv.sequence_id);
  });
  sequences_.clear();
  sampling_.clear();
  policies_.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    LiveRequest& live = *batch[i];
    host_tokens_[i] = live.next_token;
    host_positions_[i] = static_cast<int32_t>(live.kv.num_tokens);
    sequences_.push_back(&live.kv);
    sampling_.push_back(&*live.sampling);
    if (policies_.empty() || policies_.back().policy != live.policy) {
      policies_.push_back({live.policy, static_cast<int64_t>(i), 0});
    }
    ++policies_.back().num_rows;
  }
  for (const PolicyRows& rows : policies_) {
    RETURN_IF_ERROR(rows.policy->BeginStep(
        std::span<SequenceKv* const>(sequences_)
            .subspan(static_cast<size_t>(rows.first_row), static_cast<size_t>(rows.num_rows))));
  }
  const size_t bytes = batch.size() * sizeof(int32_t);
  RETURN_IF_ERROR(device_.Upload(stream_, std::as_bytes(std::span(host_tokens_)).first(bytes),
                                 token_ids_.bytes().first(bytes)));
  return device_.Upload(stream_, std::as_bytes(std::span(host_positions_)).first(bytes),
                        positions_.bytes().first(bytes));
}

absl::Status DecodeStep::Attend(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                                const MatrixView& values, const MatrixView& out) {
  for (const PolicyRows& rows : policies_) {
    const auto part = [&rows](const MatrixView& matrix) {
      return matrix.Rows(rows.first_row, rows.num_rows);
    };
    RETURN_IF_ERROR(
        rows.policy->DecodeLayer(layer, part(queries), part(keys), part(values), part(out)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const OutputToken>> DecodeStep::Run(std::span<LiveRequest*> batch) {
  RETURN_IF_ERROR(Begin(batch));
  const auto attend = [this](uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                             const MatrixView& values, const MatrixView& out) {
    return Attend(layer, queries, keys, values, out);
  };
  RETURN_IF_ERROR(model_.Decode(stream_, token_ids_.as<const int32_t>().first(batch.size()),
                                positions_.as<const int32_t>().first(batch.size()), attend,
                                sampler_.logits(static_cast<int32_t>(batch.size()))));
  for (const PolicyRows& rows : policies_) RETURN_IF_ERROR(rows.policy->EndStep());
  ASSIGN_OR_RETURN(const std::span<const OutputToken> tokens, sampler_.Sample(sampling_));
  for (const PolicyRows& rows : policies_) {
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const AttentionPolicy::BytesRead bytes = rows.policy->LastStepBytes(static_cast<size_t>(row));
      LiveRequest& live = *batch[static_cast<size_t>(rows.first_row + row)];
      live.kv_bytes_read += bytes.read;
      live.kv_bytes_full += bytes.full;
    }
  }
  return tokens;
}

}  // namespace retroinfer
