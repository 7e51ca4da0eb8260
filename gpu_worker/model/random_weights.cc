#include "gpu_worker/model/random_weights.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/model/model_table.h"

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
      : device_(device), ops_(ops), config_(config), table_(config), keep_(keep) {}

  absl::StatusOr<ModelWeights> Make();

 private:
  // Fills a new buffer by repeating `bits`.
  absl::StatusOr<DeviceBuffer> Repeat(std::span<const uint16_t> bits, int64_t elements);
  WeightView Matrix(int64_t rows, int64_t cols);
  absl::StatusOr<std::unique_ptr<PreparedLinear>> Linear(const ProjectionSpec& projection);
  absl::StatusOr<LayerWeights> Layer(uint32_t layer, const DeviceBuffer& ones);
  // Of the matrices that the numbers are drawn for.
  int64_t NumNumbers() const;

  Device& device_;
  ModelOps& ops_;
  const ModelConfig& config_;
  const ModelTable table_;
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

absl::StatusOr<std::unique_ptr<PreparedLinear>> RandomWeights::Linear(
    const ProjectionSpec& projection) {
  LinearWeights weights{.weight = Matrix(projection.out_features, projection.in_features),
                        .bias = {},
                        .scales = {},
                        .keep = projection.may_be_rounded ? keep_ : KeptWeights::kAsStored,
                        .num_parts = projection.num_parts};
  if (!projection.biases.empty()) weights.bias = Matrix(1, projection.out_features);
  return ops_.PrepareLinear(weights);
}

absl::StatusOr<LayerWeights> RandomWeights::Layer(uint32_t layer, const DeviceBuffer& ones) {
  LayerWeights weights;
  weights.spec = table_.layers()[layer];
  for (const TensorRole role : kLayerNorms) {
    const TensorSpec* const norm = table_.Find(role, layer);
    if (norm == nullptr) continue;
    weights.Norm(role) = MatrixView::Dense(ones.bytes(), DType::kBf16, 1, norm->shape[0]);
  }
  for (const Projection projection : ProjectionsOf(weights.spec)) {
    ASSIGN_OR_RETURN(weights.Linear(projection), Linear(table_.Of(projection, layer)));
  }
  return weights;
}

int64_t RandomWeights::NumNumbers() const {
  const auto elements = [](const ProjectionSpec& matrix) {
    return matrix.in_features * matrix.out_features;
  };
  // Where a matrix begins depends on how many numbers there are: another count is another model.
  int64_t count = elements(table_.Of(Projection::kOutput)) + 16 * kShift;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    count = std::max(count, elements(table_.Of(Projection::kGateUp, layer)) + 16 * kShift);
    count = std::max(count, elements(table_.Of(Projection::kQkv, layer)) + kShift);
  }
  return count;
}

absl::StatusOr<ModelWeights> RandomWeights::Make() {
  ASSIGN_OR_RETURN(stream_, device_.CreateStream(StreamKind::kCompute));
  const int64_t hidden = config_.hidden_size;
  num_numbers_ = NumNumbers();
  const std::vector<uint16_t> drawn = Draw();
  ASSIGN_OR_RETURN(numbers_, Repeat(drawn, num_numbers_));
  ModelWeights weights;
  const int64_t norm_size = std::max<int64_t>(hidden, config_.head_dim);
  const std::vector<uint16_t> ones(static_cast<size_t>(norm_size),
                                   Bf16Bits(1.0f - config_.norm_offset));
  ASSIGN_OR_RETURN(weights.norm_buffer, Repeat(ones, norm_size));
  ASSIGN_OR_RETURN(weights.embedding_buffer, Repeat(drawn, config_.vocab_size * hidden));
  weights.embedding = WeightView::Dense(weights.embedding_buffer.bytes(), WeightType::kBf16,
                                        config_.vocab_size, hidden);
  weights.final_norm = MatrixView::Dense(weights.norm_buffer.bytes(), DType::kBf16, 1, hidden);
  for (uint32_t i = 0; i < config_.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerWeights layer, Layer(i, weights.norm_buffer));
    weights.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(weights.lm_head, Linear(table_.Of(Projection::kOutput)));
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> RandomModelWeights(Device& device, ModelOps& ops,
                                                const ModelConfig& config, KeptWeights keep) {
  const bool coded = keep == KeptWeights::kAsStored && config.quantization.has_value();
  const KeptWeights numbers = RoundsNumbers(keep) ? keep : KeptWeights::kAsStored;
  const bool int4 = coded && config.quantization->form.form.id == WeightFormId::kInt4;
  const KeptWeights codes = int4 ? KeptWeights::kInt4 : KeptWeights::kFp8;
  return RandomWeights(device, ops, config, coded ? codes : numbers).Make();
}

}  // namespace retroinfer
