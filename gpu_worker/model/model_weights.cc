#include "gpu_worker/model/model_weights.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr size_t kAlignment = 256;
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kFinalNorm[] = "model.norm.weight";
constexpr char kLmHead[] = "lm_head.weight";

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::string LayerPrefix(uint32_t layer) { return absl::StrCat("model.layers.", layer, "."); }

// Tensors that may be there and have no effect.
bool MayIgnore(const ModelConfig& config, const std::string& name) {
  return (config.tie_word_embeddings && name == kLmHead) ||
         absl::EndsWith(name, ".self_attn.rotary_emb.inv_freq");
}

bool IsNorm(const std::string& name) { return absl::EndsWith(name, "norm.weight"); }

// Copies tensors of a checkpoint to the device and prepares them.
class WeightLoader {
 public:
  WeightLoader(Device& device, Ops& ops, const Checkpoint& checkpoint, const LoadProgress& progress)
      : device_(device), ops_(ops), checkpoint_(checkpoint), progress_(progress) {}

  absl::StatusOr<ModelWeights> Load(const ModelConfig& config);

 private:
  const HostTensor& Tensor(const std::string& name) const { return checkpoint_.tensors().at(name); }

  // Allocates the buffers, staging included.
  absl::Status Allocate(const ModelConfig& config, ModelWeights& weights);
  // Uploads a vector into the buffer of norms.
  absl::StatusOr<MatrixView> LoadNorm(const std::string& name, const DeviceBuffer& buffer);
  // Prepares the matrices `names`, one below the other, with their biases, if any.
  absl::StatusOr<std::unique_ptr<PreparedLinear>> LoadLinear(
      const std::vector<std::string>& names, const std::vector<std::string>& biases = {});
  // Uploads tensors of one type one behind the other, from `offset` of the staging buffer on.
  absl::StatusOr<MatrixView> Stage(const std::vector<std::string>& names, size_t offset);
  absl::StatusOr<LayerWeights> LoadLayer(const ModelConfig& config, uint32_t layer,
                                         const DeviceBuffer& norms);
  absl::Status Upload(const HostTensor& tensor, DeviceSpan<std::byte> target);

  Device& device_;
  Ops& ops_;
  const Checkpoint& checkpoint_;
  const LoadProgress& progress_;
  std::unique_ptr<Stream> stream_;
  DeviceBuffer staging_;
  size_t norm_bytes_ = 0;  // of the buffer of norms in use
  size_t done_bytes_ = 0;
};

absl::Status WeightLoader::Upload(const HostTensor& tensor, DeviceSpan<std::byte> target) {
  RETURN_IF_ERROR(device_.Upload(*stream_, tensor.bytes, target.first(tensor.bytes.size())));
  RETURN_IF_ERROR(stream_->Synchronize());
  done_bytes_ += tensor.bytes.size();
  if (progress_) progress_(done_bytes_, checkpoint_.total_bytes());
  return absl::OkStatus();
}

absl::Status WeightLoader::Allocate(const ModelConfig& config, ModelWeights& weights) {
  ASSIGN_OR_RETURN(stream_, device_.CreateStream(StreamKind::kCompute));
  size_t norm_bytes = 0;
  size_t staging_bytes = 0;
  for (const auto& [name, shape] : ExpectedTensors(config)) {
    const size_t bytes = Aligned(Tensor(name).bytes.size());
    if (IsNorm(name)) {
      norm_bytes += bytes;
    } else if (name != kEmbedding) {
      // Of a product that is joined from two or three matrices, the first is the largest.
      const size_t joined = absl::EndsWith(name, "gate_proj.weight") ? 2
                            : absl::EndsWith(name, "q_proj.weight")  ? 3
                                                                     : 1;
      staging_bytes = std::max(staging_bytes, joined * bytes);
    }
  }
  // Room for biases behind their matrices.
  staging_bytes +=
      Aligned(static_cast<size_t>(config.query_size() + 2 * config.kv_size()) * sizeof(float));
  ASSIGN_OR_RETURN(weights.norm_buffer, device_.Allocate(norm_bytes, MemoryPurpose::kWeights));
  ASSIGN_OR_RETURN(staging_, device_.Allocate(staging_bytes, MemoryPurpose::kWeights));
  ASSIGN_OR_RETURN(weights.embedding_buffer,
                   device_.Allocate(Tensor(kEmbedding).bytes.size(), MemoryPurpose::kWeights));
  return absl::OkStatus();
}

absl::StatusOr<MatrixView> WeightLoader::LoadNorm(const std::string& name,
                                                  const DeviceBuffer& buffer) {
  const HostTensor& tensor = Tensor(name);
  const DeviceSpan<std::byte> target = buffer.bytes().subspan(norm_bytes_, tensor.bytes.size());
  RETURN_IF_ERROR(Upload(tensor, target));
  norm_bytes_ += Aligned(tensor.bytes.size());
  return MatrixView::Dense(target, tensor.dtype, 1, tensor.shape[0]);
}

absl::StatusOr<MatrixView> WeightLoader::Stage(const std::vector<std::string>& names,
                                               size_t offset) {
  const HostTensor& first = Tensor(names.front());
  int64_t rows = 0;
  size_t used = offset;
  for (const std::string& name : names) {
    const HostTensor& tensor = Tensor(name);
    if (tensor.dtype != first.dtype) {
      return absl::UnimplementedError(
          absl::StrCat(checkpoint_.folder(), ": tensors \"", names.front(), "\" and \"", name,
                       "\" have different element types; the same is supported"));
    }
    RETURN_IF_ERROR(Upload(tensor, staging_.bytes().subspan(used, tensor.bytes.size())));
    used += tensor.bytes.size();
    rows += tensor.shape[0];
  }
  const DeviceSpan<std::byte> bytes = staging_.bytes().subspan(offset, used - offset);
  if (first.shape.size() == 1) return MatrixView::Dense(bytes, first.dtype, 1, rows);
  return MatrixView::Dense(bytes, first.dtype, rows, first.shape[1]);
}

absl::StatusOr<std::unique_ptr<PreparedLinear>> WeightLoader::LoadLinear(
    const std::vector<std::string>& names, const std::vector<std::string>& biases) {
  LinearWeights weights;
  ASSIGN_OR_RETURN(weights.weight, Stage(names, 0));
  if (!biases.empty()) {
    const size_t used = static_cast<size_t>(weights.weight.rows * weights.weight.cols) *
                        DTypeBytes(weights.weight.dtype);
    ASSIGN_OR_RETURN(weights.bias, Stage(biases, Aligned(used)));
  }
  return ops_.PrepareLinear(weights);
}

absl::StatusOr<LayerWeights> WeightLoader::LoadLayer(const ModelConfig& config, uint32_t layer,
                                                     const DeviceBuffer& norms) {
  const std::string prefix = LayerPrefix(layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const auto qkv = [&](const char* what) {
    std::vector<std::string> names;
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
      names.push_back(absl::StrCat(attention, part, what));
    }
    return names;
  };
  LayerWeights weights;
  ASSIGN_OR_RETURN(weights.attention_norm, LoadNorm(prefix + "input_layernorm.weight", norms));
  ASSIGN_OR_RETURN(weights.mlp_norm, LoadNorm(prefix + "post_attention_layernorm.weight", norms));
  if (config.qk_norm) {
    ASSIGN_OR_RETURN(weights.q_norm, LoadNorm(attention + "q_norm.weight", norms));
    ASSIGN_OR_RETURN(weights.k_norm, LoadNorm(attention + "k_norm.weight", norms));
  }
  ASSIGN_OR_RETURN(
      weights.qkv,
      LoadLinear(qkv(".weight"), config.qkv_bias ? qkv(".bias") : std::vector<std::string>()));
  ASSIGN_OR_RETURN(weights.o, LoadLinear({attention + "o_proj.weight"}));
  ASSIGN_OR_RETURN(weights.gate_up, LoadLinear({mlp + "gate_proj.weight", mlp + "up_proj.weight"}));
  ASSIGN_OR_RETURN(weights.down, LoadLinear({mlp + "down_proj.weight"}));
  return weights;
}

absl::StatusOr<ModelWeights> WeightLoader::Load(const ModelConfig& config) {
  ModelWeights weights;
  RETURN_IF_ERROR(Allocate(config, weights));
  const HostTensor& embedding = Tensor(kEmbedding);
  RETURN_IF_ERROR(Upload(embedding, weights.embedding_buffer.bytes()));
  weights.embedding = MatrixView::Dense(weights.embedding_buffer.bytes(), embedding.dtype,
                                        config.vocab_size, config.hidden_size);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    ASSIGN_OR_RETURN(LayerWeights loaded, LoadLayer(config, layer, weights.norm_buffer));
    weights.layers.push_back(std::move(loaded));
  }
  ASSIGN_OR_RETURN(weights.final_norm, LoadNorm(kFinalNorm, weights.norm_buffer));
  if (config.tie_word_embeddings) {
    ASSIGN_OR_RETURN(weights.lm_head,
                     ops_.PrepareLinear({.weight = weights.embedding, .bias = {}}));
  } else {
    ASSIGN_OR_RETURN(weights.lm_head, LoadLinear({kLmHead}));
  }
  return weights;
}

}  // namespace

std::map<std::string, std::vector<int64_t>> ExpectedTensors(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.query_size();
  const int64_t kv = config.kv_size();
  std::map<std::string, std::vector<int64_t>> tensors;
  tensors[kEmbedding] = {config.vocab_size, hidden};
  tensors[kFinalNorm] = {hidden};
  if (!config.tie_word_embeddings) tensors[kLmHead] = {config.vocab_size, hidden};
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    tensors[prefix + "input_layernorm.weight"] = {hidden};
    tensors[prefix + "post_attention_layernorm.weight"] = {hidden};
    tensors[prefix + "self_attn.q_proj.weight"] = {query, hidden};
    tensors[prefix + "self_attn.k_proj.weight"] = {kv, hidden};
    tensors[prefix + "self_attn.v_proj.weight"] = {kv, hidden};
    tensors[prefix + "self_attn.o_proj.weight"] = {hidden, query};
    tensors[prefix + "mlp.gate_proj.weight"] = {config.intermediate_size, hidden};
    tensors[prefix + "mlp.up_proj.weight"] = {config.intermediate_size, hidden};
    tensors[prefix + "mlp.down_proj.weight"] = {hidden, config.intermediate_size};
    if (config.qkv_bias) {
      tensors[prefix + "self_attn.q_proj.bias"] = {query};
      tensors[prefix + "self_attn.k_proj.bias"] = {kv};
      tensors[prefix + "self_attn.v_proj.bias"] = {kv};
    }
    if (config.qk_norm) {
      tensors[prefix + "self_attn.q_norm.weight"] = {config.head_dim};
      tensors[prefix + "self_attn.k_norm.weight"] = {config.head_dim};
    }
  }
  return tensors;
}

absl::Status CheckTensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  const auto expected = ExpectedTensors(config);
  for (const auto& [name, shape] : expected) {
    RETURN_IF_ERROR(checkpoint.Find(name, shape).status());
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (expected.find(name) == expected.end() && !MayIgnore(config, name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          checkpoint.folder(), ": tensor \"", name, "\" is no part of a ",
          std::string(ModelFamilyName(config.family)), " model of ", config.num_layers,
          " layers as config.json describes it; using the model without it would be wrong"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> LoadModelWeights(Device& device, Ops& ops, const ModelConfig& config,
                                              const Checkpoint& checkpoint,
                                              const LoadProgress& progress) {
  RETURN_IF_ERROR(CheckTensors(config, checkpoint));
  return WeightLoader(device, ops, checkpoint, progress).Load(config);
}

}  // namespace retroinfer
