// Powers of two that make the channels of keys and of queries alike in size, without changing what
// a model computes.
//
// A checkpoint may have channels that are large in keys because they are small in queries: products
// of both do not show it, but whatever measures distances between keys, or rounds them with one
// scale, sees those few channels alone. Clusters of the index do, and 8 bits would
// (docs/decisions/0054-eight-bit-keys-and-values.md). So the rows of k_proj are divided, and those
// of q_proj multiplied, by a power of two for each pair of channels that RoPE turns together (i and
// i + head_dim / 2); where queries and keys are normed, the weights of those norms. Products stay
// the same to the bit.
//
// The rule: 2^round(log2(s / median of s)) with s = sqrt(k / q) for a pair, k the norm of its rows
// of k_proj times the weights of the norm before it (added is the square of what varies of its
// turned bias), q the same of q_proj over the query heads of the KV head. Weights alone decide, so
// it is the same wherever a model is loaded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/kv_format.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_table.h"

namespace retroinfer {

class ChannelBalance {
 public:
  // Of the rule above. Part of the fingerprint: a change of the rule is a new number.
  static constexpr int kVersion = 1;
  // Beyond these a channel of keys or queries is as good as absent.
  static constexpr int kMaxExponent = 16;

  // Nothing is changed.
  ChannelBalance() = default;

  // Reads q_proj, k_proj, its bias and the norms of every layer, on `num_threads` threads. Layers
  // whose matrices are F16, which has too few exponents, or codes that share scales over rows, or
  // whose norms of keys are stored less 1, stay as they are; so does a pair whose weights are not
  // finite.
  //
  // REQUIRES: CheckTensors(config, checkpoint) has passed.
  static ChannelBalance Of(const ModelConfig& config, const Checkpoint& checkpoint,
                           int num_threads);

  // The same of the heads that a rank has.
  ChannelBalance Of(const ModelShard& shard) const;

  bool is_identity() const { return num_changed() == 0; }
  // Pairs of channels that change, and of how many, over all layers and heads.
  int64_t num_changed() const {
    return num_pairs() - std::count(exponents_.begin(), exponents_.end(), int8_t{0});
  }
  int64_t num_pairs() const { return static_cast<int64_t>(exponents_.size()); }

  // What each element of a weight's or bias' first dimension is multiplied by, as an exponent of
  // two; empty: nothing of the tensor changes. `tensor` is of the model's table. Of a weight that
  // is codes it is meant for the numbers, so for their scales.
  std::vector<int8_t> RowExponents(const StoredTensor& tensor) const;

  // What RoPE makes of the biases of a layer's keys, as far as it is the same at all positions
  // (turned_bias.h), [kv_heads * head_dim], behind the exponents: what is taken from every key.
  // Empty: nothing is.
  std::span<const float> key_offsets(int64_t layer) const {
    if (key_offsets_.empty()) return {};
    const auto size = static_cast<size_t>(2 * half_ * kv_heads_);
    return std::span(key_offsets_).subspan(static_cast<size_t>(layer) * size, size);
  }
  bool has_key_offsets() const { return !key_offsets_.empty(); }
  // Of the offsets. Part of the fingerprint, as kVersion is.
  static constexpr int kOffsetVersion = 1;

  // The channel of keys of whose bias the most is left behind the offsets, after balancing: `times`
  // the median of what the weights of the pairs of its head give. Eight bits have one scale for all
  // channels of a key, so a large bias leaves little of them to the others (kMostBias).
  struct LargestBias {
    double times = 0;
    int64_t layer = 0;
    int64_t head = 0;
    int64_t channel = 0;
  };
  static constexpr double kMostBias = 128;  // Qwen2.5-Coder-0.5B has 92, which was measured
  const LargestBias& largest_bias() const { return largest_bias_; }

  // All exponents, for the fingerprint.
  const std::vector<int8_t>& exponents() const { return exponents_; }

 private:
  // Adds those of the rows of `part`, zeros included.
  void AppendExponents(const TensorSpec& part, std::vector<int8_t>& rows) const;

  int64_t num_layers_ = 0;
  int64_t kv_heads_ = 0;
  int64_t group_size_ = 1;
  int64_t half_ = 0;      // pairs of a head
  bool by_norm_ = false;  // the heads of a layer share theirs
  LargestBias largest_bias_;
  std::vector<float> key_offsets_;  // [layer][kv_heads * head_dim], or none
  std::vector<int8_t> exponents_;   // [layer][KV head, or one][pair]: keys are divided by 2^e
};

// Returns: INVALID_ARGUMENT, with the channel, if `kv_format` stores keys in eight bits, and
//          `largest` (of a model) is more than these bear.
absl::Status CheckBiases(const ChannelBalance::LargestBias& largest, const KvFormat& kv_format);

// The same of a model that is not loaded. Reads nothing where there can be no such bias.
//
// REQUIRES: as ChannelBalance::Of.
absl::Status CheckBiasesOf(const ModelConfig& config, const Checkpoint& checkpoint,
                           const KvFormat& kv_format, int num_threads);

}  // namespace retroinfer
