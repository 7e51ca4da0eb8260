#include "gpu_worker/model/random_weights.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/shard_config.h"

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
  // `shard`: null for the whole model.
  RandomWeights(Device& device, ModelOps& ops, const ModelConfig& config, KeptWeights keep,
                const ModelShard* shard)
      : device_(device), ops_(ops), config_(config), table_(config), keep_(keep), shard_(shard) {}

  absl::StatusOr<ModelWeights> Make();

 private:
  // Fills a new buffer by repeating `bits`.
  absl::StatusOr<DeviceBuffer> Repeat(std::span<const uint16_t> bits, int64_t elements);
  WeightView Matrix(int64_t rows, int64_t cols);
  // Replaces `matrix`, which is made of `parts`, by what the shard has of it, in `memory`.
  absl::Status TakeShare(const std::vector<const TensorSpec*>& parts, WeightView& matrix,
                         DeviceBuffer& memory);
  // Appends to share_ what lies at [first, first + count) of the repeated numbers, or zeros.
  void AppendNumbers(size_t first, size_t count, bool are_zeros);
  // Of the stored tensors `names`; the output projection's is its own, whatever it is tied to.
  std::vector<const TensorSpec*> PartsOf(const std::vector<std::string>& names) const;
  absl::StatusOr<std::unique_ptr<PreparedLinear>> Linear(const ProjectionSpec& projection);
  absl::StatusOr<LayerWeights> Layer(uint32_t layer, const DeviceBuffer& ones);
  // Of the matrices that the numbers are drawn for.
  int64_t NumNumbers() const;

  Device& device_;
  ModelOps& ops_;
  const ModelConfig& config_;
  const ModelTable table_;
  const KeptWeights keep_;  // of the layers
  const ModelShard* const shard_;
  std::vector<uint16_t> drawn_;
  std::vector<uint16_t> share_;  // of the matrix that is made; kept, for its memory
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

std::vector<const TensorSpec*> RandomWeights::PartsOf(const std::vector<std::string>& names) const {
  const TensorSpec& output = table_.Get(TensorRole::kOutput);
  if (names.front() == output.stored) return {&output};
  std::vector<const TensorSpec*> parts;
  for (const std::string& name : names) {
    for (const TensorSpec& part : table_.stored().at(name).parts) parts.push_back(&part);
  }
  return parts;
}

void RandomWeights::AppendNumbers(size_t first, size_t count, bool are_zeros) {
  if (are_zeros) {
    share_.insert(share_.end(), count, 0);
    return;
  }
  while (count > 0) {
    const std::span<const uint16_t> run = std::span(drawn_).subspan(first % drawn_.size());
    const size_t taken = std::min(count, run.size());
    share_.insert(share_.end(), run.begin(), run.begin() + static_cast<ptrdiff_t>(taken));
    first += taken;
    count -= taken;
  }
}

absl::Status RandomWeights::TakeShare(const std::vector<const TensorSpec*>& parts,
                                      WeightView& matrix, DeviceBuffer& memory) {
  const auto begin =
      static_cast<size_t>((matrix.data - numbers_.bytes().device_data()) / sizeof(uint16_t));
  share_.clear();
  int64_t first_row = 0;
  int64_t rows = 0;
  for (const TensorSpec* const part : parts) {
    const TensorShare share = ShareOf(*part, *shard_, config_.head_dim);
    for (int64_t i = 0; i < share.rows.count; ++i) {
      const int64_t row = first_row + share.rows.first + i;
      const auto at = begin + static_cast<size_t>(row * matrix.cols + share.cols.first);
      AppendNumbers(at, static_cast<size_t>(share.cols.count), share.is_zeros);
    }
    first_row += part->shape[0];
    rows += share.rows.count;
  }
  const auto elements = static_cast<int64_t>(share_.size());
  ASSIGN_OR_RETURN(memory, Repeat(share_, elements));
  matrix = WeightView::Dense(memory.bytes(), WeightType::kBf16, rows, elements / rows);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreparedLinear>> RandomWeights::Linear(
    const ProjectionSpec& projection) {
  LinearWeights weights{.weight = Matrix(projection.out_features, projection.in_features),
                        .bias = {},
                        .scales = {},
                        .keep = projection.may_be_rounded ? keep_ : KeptWeights::kAsStored,
                        .num_parts = projection.num_parts};
  if (!projection.biases.empty()) weights.bias = Matrix(1, projection.out_features);
  DeviceBuffer of_weight;
  DeviceBuffer of_bias;
  if (shard_ != nullptr) {
    RETURN_IF_ERROR(TakeShare(PartsOf(projection.weights), weights.weight, of_weight));
    if (weights.bias.has_value()) {
      // A vector, but a row here.
      WeightView column = *weights.bias;
      std::swap(column.rows, column.cols);
      RETURN_IF_ERROR(TakeShare(PartsOf(projection.biases), column, of_bias));
      std::swap(column.rows, column.cols);
      weights.bias = column;
    }
  }
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
  drawn_ = Draw();
  ASSIGN_OR_RETURN(numbers_, Repeat(drawn_, num_numbers_));
  ModelWeights weights;
  const int64_t norm_size = std::max<int64_t>(hidden, config_.head_dim);
  const std::vector<uint16_t> ones(static_cast<size_t>(norm_size),
                                   Bf16Bits(1.0f - config_.norm_offset));
  ASSIGN_OR_RETURN(weights.norm_buffer, Repeat(ones, norm_size));
  ASSIGN_OR_RETURN(weights.embedding_buffer, Repeat(drawn_, config_.vocab_size * hidden));
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
                                                const ModelConfig& config, KeptWeights keep,
                                                const TensorParallel& parallel) {
  ASSIGN_OR_RETURN(const ModelConfig of_rank, ShardConfig(config, parallel));
  const bool coded = keep == KeptWeights::kAsStored && config.quantization.has_value();
  const KeptWeights numbers = RoundsNumbers(keep) ? keep : KeptWeights::kAsStored;
  const bool int4 = coded && config.quantization->form.form.id == WeightFormId::kInt4;
  const KeptWeights codes = int4 ? KeptWeights::kInt4 : KeptWeights::kFp8;
  return RandomWeights(device, ops, config, coded ? codes : numbers,
                       of_rank.shard.has_value() ? &*of_rank.shard : nullptr)
      .Make();
}

}  // namespace retroinfer
