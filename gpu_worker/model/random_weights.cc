#include "gpu_worker/model/random_weights.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr size_t kNumDrawn = size_t{1} << 22;
constexpr float kDeviation = 0.02f;
constexpr int64_t kShift = 4096;  // elements from the beginning of a matrix to the next one's

uint16_t Bf16Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

std::vector<uint16_t> Draw() {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, kDeviation);
  std::vector<uint16_t> drawn(kNumDrawn);
  for (uint16_t& bits : drawn) bits = Bf16Bits(normal(generator));
  return drawn;
}

class RandomWeights {
 public:
  RandomWeights(Device& device, ModelOps& ops, const ModelConfig& config, KeptWeights keep)
      : device_(device), ops_(ops), config_(config), keep_(keep) {}

  absl::StatusOr<ModelWeights> Make();

 private:
  // Fills a new buffer by repeating `bits`.
  absl::StatusOr<DeviceBuffer> Repeat(std::span<const uint16_t> bits, int64_t elements);
  WeightView Matrix(int64_t rows, int64_t cols);
  absl::StatusOr<std::unique_ptr<PreparedLinear>> Linear(int64_t in, int64_t out, KeptWeights keep,
                                                         bool has_bias = false);
  absl::StatusOr<LayerWeights> Layer(const DeviceBuffer& ones);

  Device& device_;
  ModelOps& ops_;
  const ModelConfig& config_;
  const KeptWeights keep_;  // of the layers
  std::unique_ptr<Stream> stream_;
  DeviceBuffer numbers_;  // as many as the largest matrix has, and a few more
  int64_t num_numbers_ = 0;
  int64_t next_ = 0;
};

absl::StatusOr<DeviceBuffer> RandomWeights::Repeat(std::span<const uint16_t> bits,
                                                   int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(uint16_t);
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Allocate(bytes, MemoryPurpose::kWeights));
  const std::span<const std::byte> source = std::as_bytes(bits);
  for (size_t at = 0; at < bytes; at += source.size()) {
    const size_t count = std::min(source.size(), bytes - at);
    RETURN_IF_ERROR(
        device_.Upload(*stream_, source.first(count), buffer.bytes().subspan(at, count)));
  }
  RETURN_IF_ERROR(stream_->Synchronize());
  return buffer;
}

WeightView RandomWeights::Matrix(int64_t rows, int64_t cols) {
  const int64_t room = num_numbers_ - rows * cols;
  next_ = next_ + kShift <= room ? next_ + kShift : 0;
  return WeightView::Dense(numbers_.bytes().subspan(static_cast<size_t>(next_) * 2,
                                                    static_cast<size_t>(rows * cols) * 2),
                           WeightType::kBf16, rows, cols);
}

absl::StatusOr<std::unique_ptr<PreparedLinear>> RandomWeights::Linear(int64_t in, int64_t out,
                                                                      KeptWeights keep,
                                                                      bool has_bias) {
  LinearWeights weights{.weight = Matrix(out, in), .bias = {}, .scales = {}, .keep = keep};
  if (has_bias) weights.bias = Matrix(1, out);
  return ops_.PrepareLinear(weights);
}

absl::StatusOr<LayerWeights> RandomWeights::Layer(const DeviceBuffer& ones) {
  const int64_t hidden = config_.hidden_size;
  const auto norm = [&ones](int64_t cols) {
    return MatrixView::Dense(ones.bytes(), DType::kBf16, 1, cols);
  };
  LayerWeights layer;
  layer.attention_norm = norm(hidden);
  layer.mlp_norm = norm(hidden);
  if (config_.qk_norm) {
    layer.q_norm = norm(config_.head_dim);
    layer.k_norm = norm(config_.head_dim);
  }
  const bool bias = config_.qkv_bias;
  const int64_t qkv_size = config_.query_size() + 2 * config_.kv_size();
  ASSIGN_OR_RETURN(layer.qkv, Linear(hidden, qkv_size, keep_, bias));
  ASSIGN_OR_RETURN(layer.o, Linear(config_.query_size(), hidden, keep_));
  ASSIGN_OR_RETURN(layer.gate_up, Linear(hidden, 2 * config_.intermediate_size, keep_));
  ASSIGN_OR_RETURN(layer.down, Linear(config_.intermediate_size, hidden, keep_));
  return layer;
}

absl::StatusOr<ModelWeights> RandomWeights::Make() {
  ASSIGN_OR_RETURN(stream_, device_.CreateStream(StreamKind::kCompute));
  const int64_t hidden = config_.hidden_size;
  num_numbers_ = std::max(config_.vocab_size, 2 * config_.intermediate_size) * hidden + 16 * kShift;
  num_numbers_ =
      std::max(num_numbers_, (config_.query_size() + 2 * config_.kv_size()) * hidden + kShift);
  const std::vector<uint16_t> drawn = Draw();
  ASSIGN_OR_RETURN(numbers_, Repeat(drawn, num_numbers_));
  ModelWeights weights;
  const int64_t norm_size = std::max<int64_t>(hidden, config_.head_dim);
  const std::vector<uint16_t> ones(static_cast<size_t>(norm_size), Bf16Bits(1.0f));
  ASSIGN_OR_RETURN(weights.norm_buffer, Repeat(ones, norm_size));
  ASSIGN_OR_RETURN(weights.embedding_buffer, Repeat(drawn, config_.vocab_size * hidden));
  weights.embedding = WeightView::Dense(weights.embedding_buffer.bytes(), WeightType::kBf16,
                                        config_.vocab_size, hidden);
  weights.final_norm = MatrixView::Dense(weights.norm_buffer.bytes(), DType::kBf16, 1, hidden);
  for (uint32_t i = 0; i < config_.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerWeights layer, Layer(weights.norm_buffer));
    weights.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(weights.lm_head, Linear(hidden, config_.vocab_size, KeptWeights::kAsStored));
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> RandomModelWeights(Device& device, ModelOps& ops,
                                                const ModelConfig& config, KeptWeights keep) {
  const bool coded = keep == KeptWeights::kAsStored && config.quantization.has_value();
  const KeptWeights numbers = RoundsNumbers(keep) ? keep : KeptWeights::kAsStored;
  return RandomWeights(device, ops, config, coded ? KeptWeights::kFp8 : numbers).Make();
}

}  // namespace retroinfer
