#include "gpu_worker/model/model_weights.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/stored_scales.h"

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
         absl::EndsWith(name, ".self_attn.rotary_emb.inv_freq") ||
         (config.quantization.has_value() && IsScaleWithoutEffect(name));
}

bool IsNorm(const std::string& name) { return absl::EndsWith(name, "norm.weight"); }

// Lists what becomes of each tensor of a checkpoint, and has it done.
class WeightLoader {
 public:
  WeightLoader(Device& device, ModelOps& ops, const ModelConfig& config,
               const Checkpoint& checkpoint, KeptWeights keep, const ChannelBalance& balance)
      : device_(device),
        ops_(ops),
        config_(config),
        checkpoint_(checkpoint),
        keep_(keep),
        balance_(balance) {}

  absl::StatusOr<ModelWeights> Load(const WeightJobOptions& options);

 private:
  const HostTensor& Tensor(const std::string& name) const { return checkpoint_.tensors().at(name); }
  // Adds a part to `job` behind what it has.
  void AddPart(const std::string& name, WeightJob& job);

  absl::Status Allocate(ModelWeights& weights);
  // Takes a vector's place in the buffer of norms.
  MatrixView LoadNorm(const std::string& name, const DeviceBuffer& buffer);
  // Prepares the matrices `names`, one below the other, with their biases, if any, when the jobs
  // are run. `out` stays where it is until then.
  absl::Status LoadLinear(const std::vector<std::string>& names,
                          const std::vector<std::string>& biases,
                          std::unique_ptr<PreparedLinear>* out);
  absl::Status LoadLayer(uint32_t layer, const DeviceBuffer& norms, LayerWeights& weights);
  // Adds the scales of the matrices `names` to `job`, if they have any; returns what reads them.
  absl::StatusOr<std::optional<StoredScales>> AddScales(const std::vector<std::string>& names,
                                                        WeightJob& job);
  // What `balance_` says of rows of codes.
  void ScaleRowsOf(const std::vector<std::string>& names, WeightScales& scales) const;
  absl::Status Prepare(const std::vector<std::string>& names, LinearWeights weights,
                       const StoredScales* scales, DeviceSpan<std::byte> memory,
                       std::unique_ptr<PreparedLinear>* out);
  // Adds tensors of one element type to `job`, one behind the other; returns their rows together.
  absl::StatusOr<int64_t> AddParts(const std::vector<std::string>& names, WeightJob& job);
  // What has no effect is read, too, where it is hashed.
  void ReadTheRest();

  Device& device_;
  ModelOps& ops_;
  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  const KeptWeights keep_;
  const ChannelBalance& balance_;
  std::vector<WeightJob> jobs_;
  size_t norm_bytes_ = 0;  // of the buffer of norms in use
};

absl::Status WeightLoader::Allocate(ModelWeights& weights) {
  size_t norm_bytes = 0;
  for (const auto& [name, shape] : ExpectedTensors(config_)) {
    if (IsNorm(name)) norm_bytes += Aligned(Tensor(name).num_bytes());
  }
  ASSIGN_OR_RETURN(weights.norm_buffer, device_.Allocate(norm_bytes, MemoryPurpose::kWeights));
  ASSIGN_OR_RETURN(weights.embedding_buffer,
                   device_.Allocate(Tensor(kEmbedding).num_bytes(), MemoryPurpose::kWeights));
  return absl::OkStatus();
}

void WeightLoader::AddPart(const std::string& name, WeightJob& job) {
  const HostTensor& tensor = Tensor(name);
  WeightJob::Part& part = job.parts.emplace_back();
  part = {.name = name, .tensor = tensor, .at = job.staging_bytes};
  // Codes are left as they are: their scales are multiplied.
  if (!HasScales(tensor.type)) part.row_exponents = balance_.RowExponents(name);
  job.staging_bytes += tensor.num_bytes();
}

MatrixView WeightLoader::LoadNorm(const std::string& name, const DeviceBuffer& buffer) {
  const HostTensor& tensor = Tensor(name);
  WeightJob& job = jobs_.emplace_back();
  job.parts.push_back({name, tensor, 0, balance_.RowExponents(name)});
  job.target = buffer.bytes().subspan(norm_bytes_, tensor.num_bytes());
  norm_bytes_ += Aligned(tensor.num_bytes());
  return WeightView::Dense(job.target, tensor.type, 1, tensor.shape[0]).Numbers();
}

absl::StatusOr<int64_t> WeightLoader::AddParts(const std::vector<std::string>& names,
                                               WeightJob& job) {
  const HostTensor& first = Tensor(names.front());
  int64_t rows = 0;
  for (const std::string& name : names) {
    const HostTensor& tensor = Tensor(name);
    if (tensor.type != first.type) {
      return absl::UnimplementedError(
          absl::StrCat(checkpoint_.folder(), ": tensors \"", names.front(), "\" and \"", name,
                       "\" have different element types; the same is supported"));
    }
    AddPart(name, job);
    rows += tensor.shape[0];
  }
  return rows;
}

absl::StatusOr<std::optional<StoredScales>> WeightLoader::AddScales(
    const std::vector<std::string>& names, WeightJob& job) {
  if (!HasScales(Tensor(names.front()).type)) return std::nullopt;
  StoredScales scales(*config_.quantization);
  for (const std::string& name : names) {
    const std::string scale_name = ScaleName(*config_.quantization, name);
    scales.Add(scale_name, Tensor(scale_name), Tensor(name).shape, job.staging_bytes);
    AddPart(scale_name, job);
  }
  return scales;
}

void WeightLoader::ScaleRowsOf(const std::vector<std::string>& names, WeightScales& scales) const {
  size_t first = 0;
  for (const std::string& name : names) {
    const std::vector<int8_t> exponents = balance_.RowExponents(name);
    // Only where a row's scales are its own: ChannelBalance leaves the others alone.
    for (size_t row = 0; row < exponents.size(); ++row) {
      float& scale = scales.values[first + row];
      scale = std::ldexp(scale, exponents[row]);
    }
    first += static_cast<size_t>(Tensor(name).shape[0]);
  }
}

absl::Status WeightLoader::Prepare(const std::vector<std::string>& names, LinearWeights weights,
                                   const StoredScales* scales, DeviceSpan<std::byte> memory,
                                   std::unique_ptr<PreparedLinear>* out) {
  if (scales != nullptr) {
    ASSIGN_OR_RETURN(weights.scales, scales->Read(device_, memory));
    ScaleRowsOf(names, weights.scales);
  }
  // What a quantized checkpoint left as numbers stays numbers.
  const bool may_round =
      HasScales(weights.weight.type) ||
      (RoundsLayers(config_, keep_) && std::all_of(names.begin(), names.end(), IsLayerMatrix));
  if (!RoundsNumbers(keep_) || may_round) weights.keep = keep_;
  absl::StatusOr<std::unique_ptr<PreparedLinear>> prepared = ops_.PrepareLinear(weights);
  if (!prepared.ok()) {
    return absl::Status(prepared.status().code(),
                        absl::StrCat(checkpoint_.folder(), ": \"", absl::StrJoin(names, "\", \""),
                                     "\": ", std::string(prepared.status().message())));
  }
  *out = *std::move(prepared);
  return absl::OkStatus();
}

absl::Status WeightLoader::LoadLinear(const std::vector<std::string>& names,
                                      const std::vector<std::string>& biases,
                                      std::unique_ptr<PreparedLinear>* out) {
  WeightJob& job = jobs_.emplace_back();
  ASSIGN_OR_RETURN(const int64_t rows, AddParts(names, job));
  ASSIGN_OR_RETURN(const std::optional<StoredScales> scales, AddScales(names, job));
  const size_t bias_at = Aligned(job.staging_bytes);
  if (!biases.empty()) {
    job.staging_bytes = bias_at;
    ASSIGN_OR_RETURN(const int64_t bias_size, AddParts(biases, job));
    if (bias_size != rows) return absl::InternalError("biases of another size than their matrices");
  }
  const HostTensor& first = Tensor(names.front());
  const HostTensor* const bias = biases.empty() ? nullptr : &Tensor(biases.front());
  job.finish = [=, this, &first](DeviceSpan<std::byte> memory) {
    LinearWeights weights;
    weights.weight = WeightView::Dense(memory, first.type, rows, first.shape[1]);
    if (bias != nullptr) {
      weights.bias =
          WeightView::Dense(memory.subspan(bias_at, memory.size() - bias_at), bias->type, 1, rows);
    }
    return Prepare(names, std::move(weights), scales.has_value() ? &*scales : nullptr, memory, out);
  };
  return absl::OkStatus();
}

absl::Status WeightLoader::LoadLayer(uint32_t layer, const DeviceBuffer& norms,
                                     LayerWeights& weights) {
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
  weights.attention_norm = LoadNorm(prefix + "input_layernorm.weight", norms);
  weights.mlp_norm = LoadNorm(prefix + "post_attention_layernorm.weight", norms);
  if (config_.qk_norm) {
    weights.q_norm = LoadNorm(attention + "q_norm.weight", norms);
    weights.k_norm = LoadNorm(attention + "k_norm.weight", norms);
  }
  RETURN_IF_ERROR(LoadLinear(
      qkv(".weight"), config_.qkv_bias ? qkv(".bias") : std::vector<std::string>(), &weights.qkv));
  RETURN_IF_ERROR(LoadLinear({attention + "o_proj.weight"}, {}, &weights.o));
  RETURN_IF_ERROR(
      LoadLinear({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {}, &weights.gate_up));
  return LoadLinear({mlp + "down_proj.weight"}, {}, &weights.down);
}

void WeightLoader::ReadTheRest() {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (MayIgnore(config_, name)) jobs_.emplace_back().parts.push_back({name, tensor, 0});
  }
}

absl::StatusOr<ModelWeights> WeightLoader::Load(const WeightJobOptions& options) {
  ModelWeights weights;
  RETURN_IF_ERROR(Allocate(weights));
  const HostTensor& embedding = Tensor(kEmbedding);
  WeightJob& job = jobs_.emplace_back();
  job.parts.push_back({kEmbedding, embedding, 0});
  job.target = weights.embedding_buffer.bytes();
  weights.embedding =
      WeightView::Dense(job.target, embedding.type, config_.vocab_size, config_.hidden_size);
  weights.layers.resize(config_.num_layers);
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    RETURN_IF_ERROR(LoadLayer(layer, weights.norm_buffer, weights.layers[layer]));
  }
  weights.final_norm = LoadNorm(kFinalNorm, weights.norm_buffer);
  if (!config_.tie_word_embeddings) RETURN_IF_ERROR(LoadLinear({kLmHead}, {}, &weights.lm_head));
  if (options.hasher != nullptr) ReadTheRest();
  RETURN_IF_ERROR(RunWeightJobs(device_, jobs_, options));
  if (config_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(weights.lm_head,
                     ops_.PrepareLinear({.weight = weights.embedding, .bias = {}}));
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
  std::set<std::string> scale_names;
  for (const auto& [name, shape] : expected) {
    ASSIGN_OR_RETURN(const HostTensor tensor, checkpoint.Find(name, shape));
    if (!HasScales(tensor.type)) continue;
    if (!config.quantization.has_value() || !(IsLayerMatrix(name) || name == kLmHead)) {
      return absl::InvalidArgumentError(absl::StrCat(
          checkpoint.folder(), ": tensor \"", name, "\" is F8_E4M3, which ",
          config.quantization.has_value() ? "only matrices of layers may be"
                                          : "needs a quantization_config in config.json"));
    }
    scale_names.insert(ScaleName(*config.quantization, name));
    RETURN_IF_ERROR(CheckScaleTensor(*config.quantization, checkpoint, name, shape));
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (expected.find(name) == expected.end() && scale_names.count(name) == 0 &&
        !MayIgnore(config, name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.folder(), ": tensor \"", name, "\" is no part of a ",
                       std::string(ModelFamilyName(config.family)), " model of ", config.num_layers,
                       " layers as ", checkpoint.described_by(),
                       " describes it; using the model without it would be wrong"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> LoadModelWeights(Device& device, ModelOps& ops,
                                              const ModelConfig& config,
                                              const Checkpoint& checkpoint,
                                              const WeightJobOptions& options, KeptWeights keep,
                                              const ChannelBalance& balance) {
  RETURN_IF_ERROR(CheckTensors(config, checkpoint));
  return WeightLoader(device, ops, config, checkpoint, keep, balance).Load(options);
}

}  // namespace retroinfer
