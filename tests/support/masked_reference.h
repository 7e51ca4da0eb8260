// Greedy generation, token by token, by attention in doubles over a list of all keys and values
// with a mask: what window layers and policies that forget tokens are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/float4_matrices.h"
#include "gpu_worker/model/host_numbers.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/padded_heads.h"
#include "gpu_worker/model/stacked_experts.h"
#include "gpu_worker/model/transformer.h"
#include "tests/support/backends.h"

namespace retroinfer::test_support {

class MaskedReference {
 public:
  // Whether the token at `position` sees `token`, which is not behind it, in `layer`.
  using Mask = std::function<bool(uint32_t layer, int64_t position, int64_t token)>;

  MaskedReference(const std::string& folder, int64_t context_length, Mask sees)
      : sees_(std::move(sees)) {
    config_ = *LoadModelConfig(folder);
    config_.context_length = context_length;
    auto checkpoint = Checkpoint::Open(folder);
    RI_CHECK(checkpoint.ok() && PadHeads(config_, *checkpoint).ok() &&
             UnstackExperts(config_, *checkpoint).ok() && UnpackFloat4(config_, *checkpoint).ok());
    for (uint32_t layer = 0; config_.sinks && layer < config_.num_layers; ++layer) {
      const HostTensor& sinks =
          checkpoint->tensors().at(ModelTable(config_).Get(TensorRole::kSinks, layer).stored);
      sinks_.push_back(NumbersOf(sinks.type, sinks.stored));
    }
    auto model = Transformer::Load(*backend_->device, *backend_->ops, config_, *checkpoint,
                                   {.max_prefill_rows = 1, .max_decode_rows = 1});
    RI_CHECK(model.ok());
    model_ = *std::move(model);
  }

  std::vector<int32_t> Generate(const std::vector<int32_t>& prompt, size_t count) {
    keys_.assign(static_cast<size_t>(config_.num_layers), {});
    values_ = keys_;
    std::vector<int32_t> tokens = prompt;
    for (position_ = 0; tokens.size() < prompt.size() + count; ++position_) {
      const int32_t next = Step(tokens[static_cast<size_t>(position_)]);
      if (static_cast<size_t>(position_) + 1 == tokens.size()) tokens.push_back(next);
    }
    return {tokens.begin() + static_cast<ptrdiff_t>(prompt.size()), tokens.end()};
  }

 private:
  using Rows = std::vector<std::vector<float>>;

  // The CPU's memory is the host's.
  static std::vector<float> RowOf(const MatrixView& matrix) {
    RI_CHECK(matrix.rows == 1 && matrix.dtype == DType::kF32);
    const auto* const row = reinterpret_cast<const float*>(matrix.data);
    return {row, row + matrix.cols};
  }

  absl::Status Attend(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                      const MatrixView& values, const MatrixView& out) {
    keys_[layer].push_back(RowOf(keys));
    values_[layer].push_back(RowOf(values));
    const std::vector<float> asked = RowOf(queries);
    auto* const answer = reinterpret_cast<float*>(out.data);
    const auto dim = static_cast<size_t>(config_.head_dim);
    const auto group = static_cast<size_t>(config_.num_query_heads / config_.num_kv_heads);
    for (size_t head = 0; head < static_cast<size_t>(config_.num_query_heads); ++head) {
      const size_t offset = head / group * dim;
      std::vector<double> sum(dim);
      // A logit without a value takes its share.
      double weights = sinks_.empty() ? 0 : std::exp(double{sinks_[layer][head]});
      for (int64_t token = 0; token <= position_; ++token) {
        if (!sees_(layer, position_, token)) continue;
        const float* const key = &keys_[layer][static_cast<size_t>(token)][offset];
        const float* const value = &values_[layer][static_cast<size_t>(token)][offset];
        double dot = 0;
        for (size_t j = 0; j < dim; ++j) dot += double{asked[head * dim + j]} * key[j];
        const double weight = std::exp(dot * double{config_.attention_scale()});
        weights += weight;
        for (size_t j = 0; j < dim; ++j) sum[j] += weight * value[j];
      }
      for (size_t j = 0; j < dim; ++j)
        answer[head * dim + j] = static_cast<float>(sum[j] / weights);
    }
    return absl::OkStatus();
  }

  int32_t Step(int32_t token) {
    Device& device = *backend_->device;
    const int32_t inputs[] = {token, static_cast<int32_t>(position_)};
    DeviceBuffer rows = *device.Allocate(sizeof(inputs), MemoryPurpose::kActivations);
    RI_CHECK(device.Upload(*backend_->stream, std::as_bytes(std::span(inputs)), rows.bytes()).ok());
    const int64_t vocab = config_.vocab_size;
    DeviceBuffer logits =
        *device.Allocate(static_cast<size_t>(vocab) * 4, MemoryPurpose::kActivations);
    const MatrixView row = MatrixView::Dense(logits.bytes(), DType::kF32, 1, vocab);
    const auto attend = [this](uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                               const MatrixView& values, const MatrixView& out) {
      return Attend(layer, queries, keys, values, out);
    };
    const DeviceSpan<const int32_t> both = rows.as<const int32_t>();
    RI_CHECK(
        model_->Decode(*backend_->stream, both.first(1), both.subspan(1, 1), attend, row).ok());
    const std::vector<float> scores = RowOf(row);
    return static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  }

  const Mask sees_;
  std::unique_ptr<Backend> backend_ = AvailableBackends().front().create();
  ModelConfig config_;
  std::unique_ptr<Transformer> model_;
  std::vector<std::vector<float>> sinks_;  // by layer, by query head; empty: there are none
  std::vector<Rows> keys_, values_;        // by layer, by token
  int64_t position_ = 0;
};

}  // namespace retroinfer::test_support
