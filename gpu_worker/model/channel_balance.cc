#include "gpu_worker/model/channel_balance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "gpu_worker/model/host_numbers.h"
#include "gpu_worker/model/stored_matrix.h"
#include "gpu_worker/model/stored_scales.h"
#include "gpu_worker/model/turned_bias.h"

namespace retroinfer {
namespace {

constexpr double kSmallest = 1e-12;  // replaces the size of a channel pair that is all zeros

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
  std::vector<double> keys;  // what varies of the turned biases included
  std::vector<double> queries;
  // Of keys alone, where they have biases, and no norms behind them. Of layers without RoPE they
  // are not turned, and nothing is taken from keys.
  std::optional<TurnedBias> bias;
};

class LayerReader {
 public:
  LayerReader(const ModelConfig& config, const ModelTable& table, const Checkpoint& checkpoint,
              int64_t layer)
      : config_(config), table_(table), checkpoint_(checkpoint), layer_(layer) {}

  // Whether what would change can be multiplied by powers of two.
  bool MayChange() const {
    const bool by_norm = Find(TensorRole::kKeyNorm) != nullptr;
    if (by_norm && config_.norm_offset != 0) return false;  // a product and a sum
    const auto roles = by_norm ? std::vector{TensorRole::kQueryNorm, TensorRole::kKeyNorm}
                               : std::vector{TensorRole::kQuery, TensorRole::kKey,
                                             TensorRole::kQueryBias, TensorRole::kKeyBias};
    return std::all_of(roles.begin(), roles.end(), [&](TensorRole role) {
      const TensorSpec* const spec = Find(role);
      if (spec == nullptr) return true;
      if (spec->may_be_coded && FindCodes(config_.quantization, checkpoint_, spec->stored)) {
        return config_.quantization->form.ScalesRows();
      }
      return Tensor(*spec).type != WeightType::kF16;
    });
  }

  LayerSquares Read() const {
    const TensorSpec* const key_norm = Find(TensorRole::kKeyNorm);
    LayerSquares squares;
    squares.keys = Squares(TensorRole::kKey);
    squares.queries = Squares(TensorRole::kQuery);
    if (const TensorSpec* const key_bias = Find(TensorRole::kKeyBias)) {
      TurnedBias turned = Turned(Numbers(*key_bias));
      for (size_t i = 0; i < squares.keys.size(); ++i) squares.keys[i] += turned.rest_squares[i];
      if (key_norm == nullptr) squares.bias = std::move(turned);
    }
    if (key_norm != nullptr) {
      Normalize(Numbers(*key_norm), squares.keys);
      Normalize(Numbers(table_.Get(TensorRole::kQueryNorm, layer_)), squares.queries);
    }
    return squares;
  }

 private:
  const TensorSpec* Find(TensorRole role) const { return table_.Find(role, layer_); }
  const HostTensor& Tensor(const TensorSpec& spec) const {
    return checkpoint_.tensors().at(spec.stored);
  }
  // Of a vector.
  std::vector<float> Numbers(const TensorSpec& spec) const {
    const size_t element = WeightTypeBytes(Tensor(spec).type);
    std::vector<std::byte> memory;
    return NumbersOf(Tensor(spec).type,
                     Tensor(spec).Bytes(static_cast<size_t>(spec.first_row) * element,
                                        static_cast<size_t>(spec.shape[0]) * element, memory));
  }
  TurnedBias Turned(const std::vector<float>& bias) const {
    // A norm behind the bias makes other vectors of it, and so does a rotation of a part of a head;
    // RoPE of windows is another one. A logit without a value would have to lose what keys do.
    const LayerSpec spec = LayerOf(config_, static_cast<uint32_t>(layer_));
    if (spec.rope && !spec.window_rope && !spec.sinks &&
        config_.rotated_dims() == config_.head_dim && Find(TensorRole::kKeyNorm) == nullptr) {
      return TurnBias(config_.rope, config_.head_dim, config_.context_length, bias);
    }
    TurnedBias unturned{.means = std::vector<float>(bias.size())};
    for (const float value : bias) {
      unturned.rest_squares.push_back(double{value} * double{value});
      unturned.largest_rests.push_back(std::abs(double{value}));
    }
    return unturned;
  }
  std::vector<double> Squares(TensorRole role) const {
    const std::vector<float> norm = Numbers(table_.Get(TensorRole::kAttentionNorm, layer_));
    const StoredMatrix matrix(config_, checkpoint_, table_.Get(role, layer_));
    std::vector<double> squares;
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      squares.push_back(SquareOfRow(matrix.Row(row), norm));
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
  const ModelTable& table_;
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

// The largest bias of a head's channels: `first` is the first of its channels.
ChannelBalance::LargestBias LargestBiasOf(const LayerSquares& squares, size_t first,
                                          std::span<const int8_t> exponents) {
  const size_t half = exponents.size();
  const std::span<const double> keys = std::span(squares.keys).subspan(first, 2 * half);
  const std::span<const double> rests = std::span(squares.bias->rest_squares).subspan(first);
  std::vector<double> sizes;  // of pairs without their biases, balanced
  for (size_t i = 0; i < half; ++i) {
    const double square = keys[i] - rests[i] + keys[i + half] - rests[i + half];
    sizes.push_back(std::ldexp(std::sqrt(std::max(square, kSmallest)), -exponents[i]));
  }
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<long>((half - 1) / 2), sizes.end());
  ChannelBalance::LargestBias largest;
  for (size_t i = 0; i < 2 * half; ++i) {
    const double bias = std::ldexp(squares.bias->largest_rests[first + i], -exponents[i % half]);
    const double times = bias / sizes[(half - 1) / 2];
    if (times > largest.times) largest = {.times = times, .channel = static_cast<int64_t>(i)};
  }
  return largest;
}

}  // namespace

ChannelBalance ChannelBalance::Of(const ModelConfig& config, const Checkpoint& checkpoint,
                                  int num_threads) {
  const ModelTable table(config);
  ChannelBalance balance;
  balance.num_layers_ = config.num_layers;
  balance.by_norm_ = table.Find(TensorRole::kKeyNorm, 0) != nullptr;
  balance.kv_heads_ = config.num_kv_heads;
  balance.group_size_ = config.group_size();
  balance.half_ = config.head_dim / 2;
  const int64_t heads = balance.by_norm_ ? 1 : balance.kv_heads_;
  balance.exponents_.resize(static_cast<size_t>(balance.num_layers_ * heads * balance.half_));

  if (table.Find(TensorRole::kKeyBias, 0) != nullptr && !balance.by_norm_) {
    balance.key_offsets_.resize(static_cast<size_t>(balance.num_layers_ * config.kv_size()));
  }
  std::vector<LargestBias> biases(static_cast<size_t>(balance.num_layers_));
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    const auto half = static_cast<size_t>(balance.half_);
    for (int64_t layer = next++; layer < balance.num_layers_; layer = next++) {
      const LayerReader reader(config, table, checkpoint, layer);
      const LayerSquares squares = reader.Read();
      const auto each = static_cast<size_t>(balance.by_norm_ ? balance.kv_heads_ : 1);
      const auto group = static_cast<size_t>(balance.group_size_);
      for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
        std::vector<int8_t> found(half);
        // Pairs are numbers that RoPE turns together.
        if (reader.MayChange() && config.rotated_dims() == config.head_dim) {
          found = ExponentsOf(PairMeans(squares.keys, head * each, each, half),
                              PairMeans(squares.queries, head * each * group, each * group, half));
        }
        const size_t at = (static_cast<size_t>(layer * heads) + head) * half;
        if (squares.bias.has_value()) {
          const size_t first = 2 * half * head;
          for (size_t i = 0; i < 2 * half; ++i) {
            const size_t channel =
                static_cast<size_t>(layer) * squares.bias->means.size() + first + i;
            balance.key_offsets_[channel] =
                std::ldexp(squares.bias->means[first + i], -found[i % half]);
          }
          LargestBias largest = LargestBiasOf(squares, first, found);
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

ChannelBalance ChannelBalance::Of(const ModelShard& shard) const {
  ChannelBalance part = *this;
  if (exponents_.empty()) return part;
  part.kv_heads_ = shard.kv_heads.count;
  part.group_size_ = shard.query_heads.count / part.kv_heads_;
  // Those of the rank's heads, of each layer, `each` of a head.
  const auto take = [&](const auto& all, int64_t each, auto& taken) {
    if (all.empty()) return;
    taken.clear();
    for (int64_t layer = 0; layer < num_layers_; ++layer) {
      const auto first = all.begin() + (layer * kv_heads_ + shard.kv_heads.first) * each;
      taken.insert(taken.end(), first, first + part.kv_heads_ * each);
    }
  };
  if (!by_norm_) take(exponents_, half_, part.exponents_);
  take(key_offsets_, 2 * half_, part.key_offsets_);
  return part;
}

std::vector<int8_t> ChannelBalance::RowExponents(const StoredTensor& tensor) const {
  std::vector<int8_t> rows;
  if (is_identity()) return rows;
  for (const TensorSpec& part : tensor.parts) AppendExponents(part, rows);
  const bool changes = std::any_of(rows.begin(), rows.end(), [](int8_t e) { return e != 0; });
  return changes ? rows : std::vector<int8_t>();
}

void ChannelBalance::AppendExponents(const TensorSpec& part, std::vector<int8_t>& rows) const {
  const TensorRole role = part.role;
  const bool is_key = by_norm_ ? role == TensorRole::kKeyNorm
                               : role == TensorRole::kKey || role == TensorRole::kKeyBias;
  const bool is_query = by_norm_ ? role == TensorRole::kQueryNorm
                                 : role == TensorRole::kQuery || role == TensorRole::kQueryBias;
  if (!is_key && !is_query) {
    rows.resize(rows.size() + static_cast<size_t>(part.shape[0]));
    return;
  }
  const int64_t heads = by_norm_ ? 1 : kv_heads_;
  const int64_t copies = is_query && !by_norm_ ? group_size_ : 1;
  for (int64_t head = 0; head < heads * copies; ++head) {
    const int64_t first = (part.layer * heads + head / copies) * half_;
    for (int64_t i = 0; i < 2 * half_; ++i) {
      const int8_t exponent = exponents_[static_cast<size_t>(first + i % half_)];
      rows.push_back(static_cast<int8_t>(is_key ? -exponent : exponent));
    }
  }
}

absl::Status CheckBiases(const ChannelBalance::LargestBias& largest, const KvFormat& kv_format) {
  if (kv_format.token.element != DType::kInt8 || largest.times <= ChannelBalance::kMostBias) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--kv-dtype %s: the bias of keys in layer %d, head %d, channel %d is %.1f times what the "
      "head's weights give, more than the %.0f that eight bits were measured to bear; use "
      "--kv-dtype bf16",
      std::string(kv_format.name), largest.layer, largest.head, largest.channel, largest.times,
      ChannelBalance::kMostBias));
}

absl::Status CheckBiasesOf(const ModelConfig& config, const Checkpoint& checkpoint,
                           const KvFormat& kv_format, int num_threads) {
  const bool has_bias = ModelTable(config).Find(TensorRole::kKeyBias, 0) != nullptr;
  if (!has_bias || kv_format.token.element != DType::kInt8) return absl::OkStatus();
  return CheckBiases(ChannelBalance::Of(config, checkpoint, num_threads).largest_bias(), kv_format);
}

}  // namespace retroinfer
