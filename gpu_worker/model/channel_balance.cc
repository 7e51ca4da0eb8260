#include "gpu_worker/model/channel_balance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gpu_worker/model/host_numbers.h"
#include "gpu_worker/model/stored_scales.h"
#include "gpu_worker/ops/model/e4m3.h"

namespace retroinfer {
namespace {

constexpr double kSmallest = 1e-12;  // replaces the size of a channel pair that is all zeros

std::string AttentionPrefix(int64_t layer) {
  return absl::StrCat("model.layers.", layer, ".self_attn.");
}

const std::array<float, 256>& E4m3Numbers() {
  static const std::array<float, 256> numbers = [] {
    std::array<float, 256> all;
    for (size_t code = 0; code < all.size(); ++code) {
      const auto byte = static_cast<uint8_t>(code);
      all[code] = IsE4m3Nan(byte) ? std::numeric_limits<float>::quiet_NaN() : FromE4m3(byte);
    }
    return all;
  }();
  return numbers;
}

// The rows of a matrix of a checkpoint, as numbers.
class MatrixRows {
 public:
  MatrixRows(const ModelConfig& config, const Checkpoint& checkpoint, const std::string& name)
      : tensor_(checkpoint.tensors().at(name)) {
    if (!HasScales(tensor_.type)) return;
    part_ = config.quantization->part;
    const HostTensor& scales = checkpoint.tensors().at(ScaleName(*config.quantization, name));
    scales_ = NumbersOf(scales.type, scales.stored);
  }

  int64_t size() const { return tensor_.shape[0]; }

  std::vector<float> Row(int64_t row) const {
    const auto cols = static_cast<size_t>(tensor_.shape[1]);
    const size_t bytes = cols * WeightTypeBytes(tensor_.type);
    std::vector<std::byte> memory;
    const auto stored = tensor_.Bytes(static_cast<size_t>(row) * bytes, bytes, memory);
    if (!HasScales(tensor_.type)) return NumbersOf(tensor_.type, stored);
    std::vector<float> numbers(cols);
    for (size_t col = 0; col < cols; ++col) {
      numbers[col] = E4m3Numbers()[static_cast<uint8_t>(stored[col])] * Scale(row, col, cols);
    }
    return numbers;
  }

 private:
  float Scale(int64_t row, size_t col, size_t cols) const {
    constexpr size_t kBlock = WeightScales::kBlock;
    const auto r = static_cast<size_t>(row);
    if (part_ == ScaledPart::kMatrix) return scales_[0];
    if (part_ == ScaledPart::kFeature) return scales_[r];
    return scales_[r / kBlock * ((cols + kBlock - 1) / kBlock) + col / kBlock];
  }

  const HostTensor& tensor_;
  ScaledPart part_ = ScaledPart::kMatrix;
  std::vector<float> scales_;  // of codes
};

// In an order that is always the same, so that every machine finds the same exponents.
double SquareOfRow(std::span<const float> row, std::span<const float> norm) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  for (size_t i = 0; i < row.size(); ++i) {
    const double value = double{row[i]} * double{norm[i]};
    sums[i % kLanes] += value * value;
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

// One layer's squares of channels: [head][channel].
struct LayerSquares {
  std::vector<double> keys;    // the biases' included
  std::vector<double> biases;  // of keys alone; empty if there are none, or norms behind them
  std::vector<double> queries;
};

class LayerReader {
 public:
  LayerReader(const ModelConfig& config, const Checkpoint& checkpoint, int64_t layer)
      : config_(config), checkpoint_(checkpoint), layer_(layer) {}

  // Whether what would change can be multiplied by powers of two.
  bool MayChange() const {
    const std::string prefix = AttentionPrefix(layer_);
    std::vector<std::string> names = {"q_proj.weight", "k_proj.weight"};
    if (config_.qkv_bias) names.insert(names.end(), {"q_proj.bias", "k_proj.bias"});
    if (config_.qk_norm) names = {"q_norm.weight", "k_norm.weight"};
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      const WeightType type = Tensor(prefix + name).type;
      if (HasScales(type)) return config_.quantization->part != ScaledPart::kBlock;
      return type != WeightType::kF16;
    });
  }

  LayerSquares Read() const {
    const std::string prefix = AttentionPrefix(layer_);
    LayerSquares squares;
    squares.keys = Squares(prefix + "k_proj.weight");
    squares.queries = Squares(prefix + "q_proj.weight");
    if (config_.qkv_bias) {
      const std::vector<float> bias = Numbers(prefix + "k_proj.bias");
      for (size_t i = 0; i < bias.size(); ++i) {
        const double square = double{bias[i]} * double{bias[i]};
        squares.keys[i] += square;
        if (!config_.qk_norm) squares.biases.push_back(square);
      }
    }
    if (config_.qk_norm) {
      Normalize(Numbers(prefix + "k_norm.weight"), squares.keys);
      Normalize(Numbers(prefix + "q_norm.weight"), squares.queries);
    }
    return squares;
  }

 private:
  const HostTensor& Tensor(const std::string& name) const { return checkpoint_.tensors().at(name); }
  std::vector<float> Numbers(const std::string& name) const {
    std::vector<std::byte> memory;
    return NumbersOf(Tensor(name).type, Tensor(name).Bytes(0, Tensor(name).num_bytes(), memory));
  }
  std::vector<double> Squares(const std::string& name) const {
    const std::vector<float> norm =
        Numbers(absl::StrCat("model.layers.", layer_, ".input_layernorm.weight"));
    const MatrixRows rows(config_, checkpoint_, name);
    std::vector<double> squares;
    for (int64_t row = 0; row < rows.size(); ++row) {
      squares.push_back(SquareOfRow(rows.Row(row), norm));
    }
    return squares;
  }
  // What the norm of a head makes of it: a mean square of 1, then its weights.
  void Normalize(const std::vector<float>& weights, std::vector<double>& squares) const {
    const size_t width = config_.head_dim;
    for (size_t head = 0; head < squares.size(); head += width) {
      double mean = 0;
      for (size_t i = 0; i < width; ++i) mean += squares[head + i] / static_cast<double>(width);
      for (size_t i = 0; i < width; ++i) {
        squares[head + i] *= double{weights[i]} * double{weights[i]} / std::max(mean, kSmallest);
      }
    }
  }

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  const int64_t layer_;
};

// The mean over `heads` heads from `first` on, for each pair of channels.
std::vector<double> PairMeans(std::span<const double> squares, size_t first, size_t heads,
                              size_t half) {
  std::vector<double> means(half);
  for (size_t head = first; head < first + heads; ++head) {
    for (size_t i = 0; i < half; ++i) {
      const size_t at = head * 2 * half + i;
      means[i] += (squares[at] + squares[at + half]) / static_cast<double>(heads);
    }
  }
  return means;
}

std::vector<int8_t> ExponentsOf(std::span<const double> keys, std::span<const double> queries) {
  std::vector<double> logs;  // of s
  for (size_t i = 0; i < keys.size(); ++i) {
    logs.push_back(
        (std::log2(std::max(keys[i], kSmallest)) - std::log2(std::max(queries[i], kSmallest))) / 4);
  }
  std::vector<int8_t> exponents(logs.size());
  const auto finite = [](double log) { return std::isfinite(log); };
  if (!std::all_of(logs.begin(), logs.end(), finite)) return exponents;
  std::vector<double> sorted = logs;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  for (size_t i = 0; i < logs.size(); ++i) {
    constexpr double kMax = ChannelBalance::kMaxExponent;
    exponents[i] = static_cast<int8_t>(std::clamp(std::round(logs[i] - median), -kMax, kMax));
  }
  return exponents;
}

// The largest bias of a head's channels, whose squares these are.
ChannelBalance::LargestBias LargestBiasOf(std::span<const double> keys,
                                          std::span<const double> biases,
                                          std::span<const int8_t> exponents) {
  const size_t half = exponents.size();
  std::vector<double> sizes;  // of pairs without their biases, balanced
  for (size_t i = 0; i < half; ++i) {
    const double square = keys[i] - biases[i] + keys[i + half] - biases[i + half];
    sizes.push_back(std::ldexp(std::sqrt(std::max(square, kSmallest)), -exponents[i]));
  }
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<long>((half - 1) / 2), sizes.end());
  ChannelBalance::LargestBias largest;
  for (size_t i = 0; i < 2 * half; ++i) {
    const double bias = std::ldexp(std::sqrt(biases[i]), -exponents[i % half]);
    const double times = bias / sizes[(half - 1) / 2];
    if (times > largest.times) largest = {.times = times, .channel = static_cast<int64_t>(i)};
  }
  return largest;
}

}  // namespace

ChannelBalance ChannelBalance::Of(const ModelConfig& config, const Checkpoint& checkpoint,
                                  int num_threads) {
  ChannelBalance balance;
  balance.num_layers_ = config.num_layers;
  balance.by_norm_ = config.qk_norm;
  balance.kv_heads_ = config.num_kv_heads;
  balance.group_size_ = config.group_size();
  balance.half_ = config.head_dim / 2;
  const int64_t heads = balance.by_norm_ ? 1 : balance.kv_heads_;
  balance.exponents_.resize(static_cast<size_t>(balance.num_layers_ * heads * balance.half_));

  std::vector<LargestBias> biases(static_cast<size_t>(balance.num_layers_));
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    const auto half = static_cast<size_t>(balance.half_);
    for (int64_t layer = next++; layer < balance.num_layers_; layer = next++) {
      const LayerReader reader(config, checkpoint, layer);
      const LayerSquares squares = reader.Read();
      const auto each = static_cast<size_t>(balance.by_norm_ ? balance.kv_heads_ : 1);
      const auto group = static_cast<size_t>(balance.group_size_);
      for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
        std::vector<int8_t> found(half);
        if (reader.MayChange()) {
          found = ExponentsOf(PairMeans(squares.keys, head * each, each, half),
                              PairMeans(squares.queries, head * each * group, each * group, half));
        }
        const size_t at = (static_cast<size_t>(layer * heads) + head) * half;
        if (!squares.biases.empty()) {
          LargestBias largest =
              LargestBiasOf(std::span(squares.keys).subspan(2 * half * head, 2 * half),
                            std::span(squares.biases).subspan(2 * half * head, 2 * half), found);
          largest.layer = layer;
          largest.head = static_cast<int64_t>(head);
          LargestBias& of_layer = biases[static_cast<size_t>(layer)];
          if (largest.times > of_layer.times) of_layer = largest;
        }
        std::copy(found.begin(), found.end(), balance.exponents_.begin() + static_cast<long>(at));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const LargestBias& largest : biases) {
    if (largest.times > balance.largest_bias_.times) balance.largest_bias_ = largest;
  }
  return balance;
}

std::vector<int8_t> ChannelBalance::RowExponents(const std::string& name) const {
  absl::string_view rest = name;
  if (is_identity() || !absl::ConsumePrefix(&rest, "model.layers.")) return {};
  const size_t dot = rest.find('.');
  int64_t layer = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, dot), &layer)) return {};
  rest.remove_prefix(dot + 1);
  if (layer < 0 || layer >= num_layers_ || !absl::ConsumePrefix(&rest, "self_attn.")) return {};

  const bool is_key = absl::StartsWith(rest, by_norm_ ? "k_norm." : "k_proj.");
  const bool is_query = absl::StartsWith(rest, by_norm_ ? "q_norm." : "q_proj.");
  if (!is_key && !is_query) return {};
  if (!absl::EndsWith(rest, ".weight") && !absl::EndsWith(rest, ".bias")) return {};
  const int64_t heads = by_norm_ ? 1 : kv_heads_;
  const int64_t copies = is_query && !by_norm_ ? group_size_ : 1;
  std::vector<int8_t> rows;
  bool changes = false;
  for (int64_t head = 0; head < heads * copies; ++head) {
    const int64_t first = (layer * heads + head / copies) * half_;
    for (int64_t i = 0; i < 2 * half_; ++i) {
      const int8_t exponent = exponents_[static_cast<size_t>(first + i % half_)];
      rows.push_back(static_cast<int8_t>(is_key ? -exponent : exponent));
      changes |= exponent != 0;
    }
  }
  return changes ? rows : std::vector<int8_t>();
}

absl::Status CheckBiases(const ChannelBalance::LargestBias& largest, const KvFormat& kv_format) {
  if (kv_format.token.element != DType::kInt8 || largest.times <= ChannelBalance::kMostBias) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--kv-dtype %s: the bias of keys in layer %d, head %d, channel %d is %.1f times what the "
      "head's weights give, more than the %.0f that eight bits bear; use --kv-dtype bf16",
      std::string(kv_format.name), largest.layer, largest.head, largest.channel, largest.times,
      ChannelBalance::kMostBias));
}

absl::Status CheckBiasesOf(const ModelConfig& config, const Checkpoint& checkpoint,
                           const KvFormat& kv_format, int num_threads) {
  if (!config.qkv_bias || kv_format.token.element != DType::kInt8) return absl::OkStatus();
  return CheckBiases(ChannelBalance::Of(config, checkpoint, num_threads).largest_bias(), kv_format);
}

}  // namespace retroinfer
