#include "gpu_worker/executor/decode_step.h"

#include <algorithm>
#include <array>

#include "absl/memory/memory.h"
#include "absl/time/clock.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Shapes of forward passes in use at a time: batch sizes, policies and context lengths (about 1 MB
// each); and as many of drawing, which are small.
constexpr size_t kMaxGraphs = 64;

// Token ids and positions.
std::array<size_t, 2> InputSizes(int32_t max_batch) {
  const size_t bytes = static_cast<size_t>(max_batch) * sizeof(int32_t);
  return {bytes, bytes};
}

int64_t NowNs() { return absl::GetCurrentTimeNanos(); }

}  // namespace

DecodeStep::DecodeStep(Device& device, Stream& stream, Transformer& model, Sampler& sampler,
                       WindowLayers* windows, int32_t max_batch)
    : stream_(stream),
      model_(model),
      sampler_(sampler),
      windows_(windows),
      map_(model.config().num_layers, model.config().layer_windows),
      forward_graphs_(device, stream, kMaxGraphs),
      sampling_graphs_(device, stream, kMaxGraphs) {
  sequences_.reserve(static_cast<size_t>(max_batch));
  sampling_.reserve(static_cast<size_t>(max_batch));
  targets_.reserve(static_cast<size_t>(max_batch));
  fed_.reserve(static_cast<size_t>(max_batch));
  policies_.reserve(static_cast<size_t>(max_batch));
  results_.reserve(static_cast<size_t>(max_batch));
}

MemoryNeed DecodeStep::MemoryOf(int32_t max_batch) {
  return {MemoryPurpose::kActivations, StagedArrays::Bytes(InputSizes(max_batch))};
}

absl::StatusOr<std::unique_ptr<DecodeStep>> DecodeStep::Create(Device& device, Stream& stream,
                                                               Transformer& model, Sampler& sampler,
                                                               int32_t max_batch,
                                                               WindowLayers* windows) {
  auto step = absl::WrapUnique(new DecodeStep(device, stream, model, sampler, windows, max_batch));
  ASSIGN_OR_RETURN(step->inputs_, StagedArrays::Create(device, InputSizes(max_batch),
                                                       MemoryPurpose::kActivations));
  return step;
}

absl::Status DecodeStep::Begin(std::span<const StepRow> rows) {
  sequences_.clear();
  sampling_.clear();
  targets_.clear();
  fed_.clear();
  policies_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    inputs_.Host<int32_t>(kTokenIds)[i] = row.token;
    inputs_.Host<int32_t>(kPositions)[i] = static_cast<int32_t>(row.position);
    targets_.push_back(row.task == StepRow::Task::kMeasure ? row.target : -1);
    fed_.push_back(row.token);
    sequences_.push_back(row.sequence);
    sampling_.push_back(row.sampling);
    if (policies_.empty() || policies_.back().policy != row.policy) {
      policies_.push_back({row.policy, static_cast<int64_t>(i), 0});
    }
    ++policies_.back().num_rows;
  }
  for (const PolicyRows& rows : policies_) {
    RETURN_IF_ERROR(rows.policy->BeginStep(
        std::span<SequenceKv* const>(sequences_)
            .subspan(static_cast<size_t>(rows.first_row), static_cast<size_t>(rows.num_rows))));
  }
  if (windows_ != nullptr) RETURN_IF_ERROR(windows_->BeginStep(sequences_));
  RETURN_IF_ERROR(sampler_.Prepare(sampling_, targets_, fed_));
  shape_.clear();
  for (const PolicyRows& rows : policies_) {
    shape_.push_back(reinterpret_cast<uintptr_t>(rows.policy));
    shape_.push_back(static_cast<uint64_t>(rows.num_rows));
    shape_.push_back(rows.policy->StepShape());
  }
  return absl::OkStatus();
}

absl::Status DecodeStep::Attend(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                                const MatrixView& values, const MatrixView& out) {
  const AttentionForm form = model_.AttentionOf(layer);
  const LayerMap::Place place = map_[layer];
  if (place.is_window) {
    return windows_->DecodeLayer(place.number, form, queries, keys, values, out);
  }
  for (const PolicyRows& rows : policies_) {
    const auto part = [&rows](const MatrixView& matrix) {
      return matrix.Rows(rows.first_row, rows.num_rows);
    };
    RETURN_IF_ERROR(rows.policy->DecodeLayer(place.number, form, part(queries), part(keys),
                                             part(values), part(out)));
  }
  return absl::OkStatus();
}

absl::Status DecodeStep::EnqueueForward() {
  const size_t batch = sequences_.size();
  RETURN_IF_ERROR(inputs_.Upload(stream_));
  for (const PolicyRows& rows : policies_) RETURN_IF_ERROR(rows.policy->UploadStep());
  if (windows_ != nullptr) RETURN_IF_ERROR(windows_->UploadStep());
  const auto attend = [this](uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                             const MatrixView& values, const MatrixView& out) {
    return Attend(layer, queries, keys, values, out);
  };
  RETURN_IF_ERROR(model_.Decode(stream_, inputs_.On<const int32_t>(kTokenIds).first(batch),
                                inputs_.On<const int32_t>(kPositions).first(batch), attend,
                                sampler_.logits(static_cast<int32_t>(batch))));
  for (const PolicyRows& rows : policies_) RETURN_IF_ERROR(rows.policy->DownloadStep());
  return absl::OkStatus();
}

AttentionPolicy::BytesRead DecodeStep::BytesOf(const PolicyRows& rows, size_t row) const {
  AttentionPolicy::BytesRead bytes = rows.policy->LastStepBytes(row);
  if (windows_ == nullptr) return bytes;
  const int64_t num_tokens = sequences_[static_cast<size_t>(rows.first_row) + row]->num_tokens;
  bytes.read += windows_->BytesRead(num_tokens);
  bytes.full += windows_->BytesOfAll(num_tokens);
  return bytes;
}

absl::StatusOr<std::span<const StepResult>> DecodeStep::Run(std::span<const StepRow> rows) {
  const int64_t begun = NowNs();
  RETURN_IF_ERROR(Begin(rows));
  RETURN_IF_ERROR(forward_graphs_.Run(shape_, [this] { return EnqueueForward(); }));
  const int64_t launched = NowNs();
  sampler_.FillMasks();
  const int64_t filled = NowNs();
  RETURN_IF_ERROR(sampling_graphs_.Run(sampler_.Shape(), [this] { return sampler_.Enqueue(); }));
  for (const PolicyRows& part : policies_) RETURN_IF_ERROR(part.policy->EndStep());
  const int64_t enqueued = NowNs();
  RETURN_IF_ERROR(sampler_.Wait());
  const int64_t waited = NowNs();
  const std::span<const OutputToken> tokens = sampler_.Results();
  results_.clear();
  for (const PolicyRows& part : policies_) {
    for (size_t row = 0; row < static_cast<size_t>(part.num_rows); ++row) {
      const size_t index = results_.size();
      results_.push_back({.token = &tokens[index],
                          .bytes = BytesOf(part, row),
                          .unseen = part.policy->LastStepUnseen(row),
                          .is_drawn = sampler_.IsDrawn(index),
                          .lacked = part.policy->LastStepLacked(row)});
    }
    part.policy->LearnFromStep();
  }
  ++num_steps_;
  mask_ns_ += filled - launched;
  host_ns_ += launched - begun + enqueued - filled + NowNs() - waited;
  return results_;
}

DecodeStep::Counters DecodeStep::counters() const {
  return {.steps = num_steps_,
          .host_ns = host_ns_,
          .mask_ns = mask_ns_,
          .graphs = forward_graphs_.counters()};
}

}  // namespace retroinfer
