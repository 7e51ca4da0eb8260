// Plain exact attention over the dense pool for a few sequences: what a policy does for decode, in
// its simplest form, so that the forward pass can be tested alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/backend/ops.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

// `num_sequences` sequences of up to `max_tokens` tokens; sequence i owns blocks
// [i * blocks_per_sequence, ...) of the pool.
class DenseSequences {
 public:
  DenseSequences(Backend& backend, const ModelConfig& config, const KvFormat& kv_format,
                 int num_sequences, int64_t max_tokens)
      : backend_(backend),
        data_(backend),
        config_(config),
        geometry_{config.num_layers, config.num_kv_heads, config.head_dim, kv_format},
        sink_tokens_(config.layer_windows.empty() ? kSinkTokens : 0),
        blocks_per_sequence_(1 + (max_tokens + kDenseBlockTokens - 1) / kDenseBlockTokens),
        lengths_(num_sequences, 0) {
    const auto num_blocks = static_cast<size_t>(num_sequences * blocks_per_sequence_);
    std::vector<DenseBlockId> ids(num_blocks);
    // Not in order, so that a block id is never a block's place by accident.
    for (size_t i = 0; i < num_blocks; ++i) ids[i] = static_cast<int32_t>(num_blocks - 1 - i);
    block_ids_ = data_.Upload(ids);
    pool_buffer_ = data_.Upload(std::vector<float>(
        num_blocks * DensePoolView::BlockBytes(geometry_) / sizeof(float), kNan));
    pool_ = {pool_buffer_.bytes(), geometry_};
    host_ids_ = std::move(ids);
  }

  const KvGeometry& geometry() const { return geometry_; }
  int64_t length(int sequence) const { return lengths_[sequence]; }

  // Takes `num_tokens` tokens of a layer over from a prefill.
  absl::Status Fill(int sequence, uint32_t layer, const LayerKv& kv, int64_t num_tokens) {
    const auto ids = block_ids_.as<const DenseBlockId>().subspan(
        static_cast<size_t>(sequence * blocks_per_sequence_),
        static_cast<size_t>(blocks_per_sequence_));
    const int64_t sink = std::min<int64_t>(num_tokens, sink_tokens_);
    if (sink > 0) {
      RETURN_IF_ERROR(
          backend_.ops->attention().FillDense(*backend_.stream, {.in = kv,
                                                                 .first_token = 0,
                                                                 .num_tokens = sink,
                                                                 .pool = pool_,
                                                                 .layer = layer,
                                                                 .block_ids = ids.first(1)}));
    }
    if (num_tokens > sink) {
      RETURN_IF_ERROR(backend_.ops->attention().FillDense(
          *backend_.stream, {.in = kv,
                             .first_token = sink,
                             .num_tokens = num_tokens - sink,
                             .pool = pool_,
                             .layer = layer,
                             .block_ids = ids.subspan(1, ids.size() - 1)}));
    }
    lengths_[sequence] = num_tokens;
    return absl::OkStatus();
  }

  // Begins a decode step of these sequences, one new token each; their lengths grow by one.
  void BeginStep(std::span<const int> sequences) {
    std::vector<DenseBlockId> target_blocks;
    std::vector<int32_t> places;
    std::vector<DenseZone> zones;
    for (const int sequence : sequences) {
      const int64_t token = lengths_[sequence]++;
      const int64_t window_token = token - sink_tokens_;
      const bool is_sink = window_token < 0;
      const int64_t block = is_sink ? 0 : 1 + window_token / kDenseBlockTokens;
      const int64_t first = sequence * blocks_per_sequence_;
      target_blocks.push_back(host_ids_[static_cast<size_t>(first + block)]);
      places.push_back(static_cast<int32_t>(is_sink ? token : window_token % kDenseBlockTokens));
      zones.push_back({block_ids_.as<const DenseBlockId>().device_data() + first,
                       static_cast<int32_t>(std::min<int64_t>(token + 1, sink_tokens_)),
                       static_cast<int32_t>(std::max<int64_t>(window_token + 1, 0))});
    }
    target_blocks_ = data_.Upload(target_blocks);
    places_ = data_.Upload(places);
    zones_ = data_.Upload(zones);
    scratch_ = data_.Allocate(backend_.ops->attention().DecodeAttentionScratchBytes(
        static_cast<int32_t>(sequences.size()), static_cast<int32_t>(config_.num_query_heads),
        static_cast<int32_t>(config_.head_dim)));
  }

  // The callback of Transformer::Decode; `form`: Transformer::AttentionOf(layer).
  absl::Status Attend(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                      const MatrixView& keys, const MatrixView& values, const MatrixView& out) {
    RETURN_IF_ERROR(backend_.ops->attention().AppendDense(
        *backend_.stream, {.keys = keys,
                           .values = values,
                           .pool = pool_,
                           .layer = layer,
                           .block_ids = target_blocks_.as<const DenseBlockId>(),
                           .place_in_block = places_.as<const int32_t>()}));
    DecodeAttentionArgs args;
    args.queries = queries;
    args.pool = pool_;
    args.layer = layer;
    args.zones = zones_.as<const DenseZone>();
    args.scale = form.scale;
    args.window = form.window;
    args.sinks = form.sinks;
    args.out = out;
    args.scratch = scratch_.bytes();
    return backend_.ops->attention().DecodeAttention(*backend_.stream, args);
  }

 private:
  Backend& backend_;
  DeviceData data_;
  const ModelConfig& config_;
  const KvGeometry geometry_;  // of all layers
  const int64_t sink_tokens_;  // a window is one of the newest tokens alone
  const int64_t blocks_per_sequence_;
  std::vector<int64_t> lengths_;  // tokens
  std::vector<DenseBlockId> host_ids_;
  DeviceBuffer block_ids_;
  DeviceBuffer pool_buffer_;
  DensePoolView pool_;
  DeviceBuffer target_blocks_;
  DeviceBuffer places_;
  DeviceBuffer zones_;
  DeviceBuffer scratch_;
};

}  // namespace retroinfer::test_support
