#include "gpu_worker/model/model_weights.h"

#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/stored_groups.h"
#include "gpu_worker/model/stored_scales.h"

namespace retroinfer {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Tensors that may be there and have no effect.
bool MayIgnore(const ModelConfig& config, const ModelTable& table, const std::string& name) {
  const bool has_codes = config.quantization.has_value() || config.float4.has_value();
  return table.HasNoEffect(name) || (has_codes && IsScaleWithoutEffect(name));
}

// Lists what becomes of each tensor of a checkpoint, and has it done.
class WeightLoader {
 public:
  WeightLoader(Device& device, ModelOps& ops, const ModelConfig& config,
               const Checkpoint& checkpoint, KeptWeights keep, const ChannelBalance& balance)
      : device_(device),
        ops_(ops),
        config_(config),
        table_(config),
        checkpoint_(checkpoint),
        keep_(keep),
        balance_(balance) {}

  absl::StatusOr<ModelWeights> Load(const WeightJobOptions& options);

 private:
  // Memory of a job for codes that are put into rows.
  struct Arrangement {
    size_t columns_at = 0;  // int32, if there are columns
    size_t rows_at = 0;
    std::vector<int32_t> columns;  // as WeightScales has them
  };

  const HostTensor& Tensor(const std::string& name) const { return checkpoint_.tensors().at(name); }
  // The names of matrix `name` as codes, if it is so.
  std::optional<CodedTensors> CodesOf(const std::string& name) const {
    return table_.stored().at(name).may_be_coded()
               ? FindCodes(config_.quantization, checkpoint_, name)
               : std::nullopt;
  }
  // What the balance says of a stored tensor; nothing of scales.
  std::vector<int8_t> RowExponents(const std::string& name) const {
    const auto stored = table_.stored().find(name);
    return stored == table_.stored().end() ? std::vector<int8_t>()
                                           : balance_.RowExponents(stored->second);
  }
  // Adds a tensor to `job` behind what it has.
  void AddPart(const std::string& name, WeightJob& job);

  absl::Status Allocate(ModelWeights& weights);
  // Takes a vector's place in the buffer of norms.
  MatrixView LoadNorm(const TensorSpec& norm, const DeviceBuffer& buffer);
  // Prepares a matrix, with its bias, if any, when the jobs are run. `out` stays where it is until
  // then.
  absl::Status LoadLinear(const ProjectionSpec& projection, std::unique_ptr<PreparedLinear>* out);
  absl::Status LoadLayer(uint32_t layer, const DeviceBuffer& norms, LayerWeights& weights);
  // Adds scales and zeros of the matrices `names` to `job`, if they are codes; returns what reads
  // them.
  std::optional<StoredScales> AddScales(const std::vector<std::string>& names, WeightJob& job);
  // Where codes are to be arranged: adds memory for that to `job`, and hashes what says how.
  absl::StatusOr<Arrangement> AddArrangement(const ProjectionSpec& projection, WeightJob& job);
  // Puts the codes in `memory` into rows; returns where these are.
  absl::StatusOr<DeviceSpan<std::byte>> Arrange(const ProjectionSpec& projection,
                                                const Arrangement& arrangement,
                                                DeviceSpan<std::byte> memory);
  // What `balance_` says of rows of codes.
  void ScaleRowsOf(const ProjectionSpec& projection, WeightScales& scales) const;
  absl::Status Prepare(const ProjectionSpec& projection, LinearWeights weights,
                       const StoredScales* scales, DeviceSpan<std::byte> memory,
                       std::unique_ptr<PreparedLinear>* out);
  // Adds tensors of one element type, of matrices the codes if they are codes, to `job`, one behind
  // the other; returns their rows together.
  absl::StatusOr<int64_t> AddParts(const std::vector<std::string>& names, WeightJob& job);
  // Copies sinks, and what `balance_` says is taken from keys.
  absl::Status LoadLayerVectors(ModelWeights& weights);
  // What is not copied (numbers of groups, shapes, what has no effect) is read, too, where it is
  // hashed.
  void ReadTheRest();

  Device& device_;
  ModelOps& ops_;
  const ModelConfig& config_;
  const ModelTable table_;
  const Checkpoint& checkpoint_;
  const KeptWeights keep_;
  const ChannelBalance& balance_;
  std::vector<WeightJob> jobs_;
  size_t norm_bytes_ = 0;  // of the buffer of norms in use
};

absl::Status WeightLoader::Allocate(ModelWeights& weights) {
  size_t norm_bytes = 0;
  const auto add = [&](const TensorSpec* norm) {
    if (norm != nullptr) norm_bytes += Aligned(Tensor(norm->stored).num_bytes());
  };
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    for (const TensorRole role : kLayerNorms) add(table_.Find(role, layer));
  }
  add(table_.Find(TensorRole::kFinalNorm));
  const std::string& embedding = table_.Get(TensorRole::kEmbedding).stored;
  ASSIGN_OR_RETURN(weights.norm_buffer, device_.Allocate(norm_bytes, MemoryPurpose::kWeights));
  ASSIGN_OR_RETURN(weights.embedding_buffer,
                   device_.Allocate(Tensor(embedding).num_bytes(), MemoryPurpose::kWeights));
  return absl::OkStatus();
}

void WeightLoader::AddPart(const std::string& name, WeightJob& job) {
  const HostTensor& tensor = Tensor(name);
  WeightJob::Part& part = job.parts.emplace_back();
  part = {.name = name, .tensor = tensor, .at = job.staging_bytes};
  // Codes are left as they are: their scales are multiplied.
  if (!HasScales(tensor.type)) part.row_exponents = RowExponents(name);
  job.staging_bytes += tensor.num_bytes();
}

MatrixView WeightLoader::LoadNorm(const TensorSpec& norm, const DeviceBuffer& buffer) {
  const HostTensor& tensor = Tensor(norm.stored);
  WeightJob& job = jobs_.emplace_back();
  job.parts.push_back({norm.stored, tensor, 0, RowExponents(norm.stored)});
  job.target = buffer.bytes().subspan(norm_bytes_, tensor.num_bytes());
  norm_bytes_ += Aligned(tensor.num_bytes());
  return WeightView::Dense(job.target, tensor.type, 1, tensor.shape[0]).Numbers();
}

absl::StatusOr<int64_t> WeightLoader::AddParts(const std::vector<std::string>& names,
                                               WeightJob& job) {
  const auto stored_name = [this](const std::string& name) {
    const std::optional<CodedTensors> codes = CodesOf(name);
    return codes.has_value() ? codes->codes : name;
  };
  const HostTensor& first = Tensor(stored_name(names.front()));
  int64_t rows = 0;
  for (const std::string& name : names) {
    const HostTensor& tensor = Tensor(stored_name(name));
    if (tensor.type != first.type) {
      return absl::UnimplementedError(
          absl::StrCat(checkpoint_.folder(), ": tensors \"", names.front(), "\" and \"", name,
                       "\" have different element types; the same is supported"));
    }
    AddPart(stored_name(name), job);
    rows += table_.stored().at(name).shape[0];
  }
  return rows;
}

std::optional<StoredScales> WeightLoader::AddScales(const std::vector<std::string>& names,
                                                    WeightJob& job) {
  if (!CodesOf(names.front()).has_value()) return std::nullopt;
  StoredScales scales(config_.quantization->form);
  for (const std::string& name : names) {
    const CodedTensors stored = *CodesOf(name);
    const std::vector<int64_t>& shape = table_.stored().at(name).shape;
    scales.Add(stored.scales, Tensor(stored.scales), shape[0], shape[1], job.staging_bytes);
    AddPart(stored.scales, job);
    if (stored.zeros.empty()) continue;
    scales.AddZeros(stored.zeros, Tensor(stored.zeros), job.staging_bytes);
    AddPart(stored.zeros, job);
  }
  return scales;
}

absl::StatusOr<WeightLoader::Arrangement> WeightLoader::AddArrangement(
    const ProjectionSpec& projection, WeightJob& job) {
  const StoredForm& form = config_.quantization->form;
  const std::string& name = projection.weights.front();
  const std::optional<CodedTensors> codes = CodesOf(name);
  Arrangement arrangement;
  // CheckTensors holds the others to the same columns.
  ASSIGN_OR_RETURN(arrangement.columns,
                   ColumnsByGroup(form, *codes, checkpoint_, projection.in_features));
  arrangement.columns_at = Aligned(job.staging_bytes);
  arrangement.rows_at =
      arrangement.columns_at + Aligned(arrangement.columns.size() * sizeof(int32_t));
  job.staging_bytes =
      arrangement.rows_at + form.form.Bytes(projection.out_features, projection.in_features);
  return arrangement;
}

absl::StatusOr<DeviceSpan<std::byte>> WeightLoader::Arrange(const ProjectionSpec& projection,
                                                            const Arrangement& arrangement,
                                                            DeviceSpan<std::byte> memory) {
  const StoredForm& form = config_.quantization->form;
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream,
                   device_.CreateStream(StreamKind::kCompute));
  const std::span columns = std::as_bytes(std::span(arrangement.columns));
  DeviceSpan<const int32_t> columns_there;
  if (!columns.empty()) {
    const DeviceSpan<std::byte> there = memory.subspan(arrangement.columns_at, columns.size());
    RETURN_IF_ERROR(device_.Upload(*stream, columns, there));
    columns_there = {reinterpret_cast<const int32_t*>(there.device_data()),
                     arrangement.columns.size()};
  }
  const size_t all_bytes = form.form.Bytes(projection.out_features, projection.in_features);
  const DeviceSpan<std::byte> rows = memory.subspan(arrangement.rows_at, all_bytes);
  size_t from = 0;
  size_t to = 0;
  for (const std::string& name : projection.weights) {
    const std::vector<int64_t>& shape = table_.stored().at(name).shape;
    const size_t bytes = Tensor(CodesOf(name)->codes).num_bytes();
    const size_t arranged_bytes = form.form.Bytes(shape[0], shape[1]);
    RETURN_IF_ERROR(ops_.ArrangeCodes(*stream, {.in = memory.subspan(from, bytes),
                                                .order = form.order,
                                                .rows = shape[0],
                                                .cols = shape[1],
                                                .columns = columns_there,
                                                .out = rows.subspan(to, arranged_bytes)}));
    from += bytes;
    to += arranged_bytes;
  }
  RETURN_IF_ERROR(stream->Synchronize());
  return rows;
}

void WeightLoader::ScaleRowsOf(const ProjectionSpec& projection, WeightScales& scales) const {
  const auto each = static_cast<size_t>(scales.num_cols(projection.in_features));
  size_t first = 0;
  for (const std::string& name : projection.weights) {
    const std::vector<int8_t> exponents = RowExponents(name);
    // Only where a row's scales are its own: ChannelBalance leaves the others alone.
    for (size_t i = 0; i < exponents.size() * each; ++i) {
      float& scale = scales.values[first * each + i];
      scale = std::ldexp(scale, exponents[i / each]);
    }
    first += static_cast<size_t>(table_.stored().at(name).shape[0]);
  }
}

absl::Status WeightLoader::Prepare(const ProjectionSpec& projection, LinearWeights weights,
                                   const StoredScales* scales, DeviceSpan<std::byte> memory,
                                   std::unique_ptr<PreparedLinear>* out) {
  if (scales != nullptr) {
    std::vector<int32_t> columns = std::move(weights.scales.columns);
    ASSIGN_OR_RETURN(weights.scales, scales->Read(device_, memory));
    weights.scales.columns = std::move(columns);
    ScaleRowsOf(projection, weights.scales);
  }
  // What a quantized checkpoint left as numbers stays numbers.
  const bool may_round =
      weights.weight.form.is_code() || (RoundsLayers(config_, keep_) && projection.may_be_rounded);
  if (!RoundsNumbers(keep_) || may_round) weights.keep = keep_;
  absl::StatusOr<std::unique_ptr<PreparedLinear>> prepared = ops_.PrepareLinear(weights);
  if (!prepared.ok()) {
    return absl::Status(
        prepared.status().code(),
        absl::StrCat(checkpoint_.folder(), ": \"", absl::StrJoin(projection.weights, "\", \""),
                     "\": ", std::string(prepared.status().message())));
  }
  *out = *std::move(prepared);
  return absl::OkStatus();
}

absl::Status WeightLoader::LoadLinear(const ProjectionSpec& projection,
                                      std::unique_ptr<PreparedLinear>* out) {
  WeightJob& job = jobs_.emplace_back();
  ASSIGN_OR_RETURN(const int64_t rows, AddParts(projection.weights, job));
  const std::optional<StoredScales> scales = AddScales(projection.weights, job);
  std::optional<Arrangement> arrangement;
  if (scales.has_value() && config_.quantization->form.IsArranged()) {
    ASSIGN_OR_RETURN(arrangement, AddArrangement(projection, job));
  }
  const size_t bias_at = Aligned(job.staging_bytes);
  const HostTensor* bias = nullptr;
  if (!projection.biases.empty()) {
    job.staging_bytes = bias_at;
    ASSIGN_OR_RETURN(const int64_t bias_size, AddParts(projection.biases, job));
    if (bias_size != rows) return absl::InternalError("biases of another size than their matrices");
    bias = &Tensor(projection.biases.front());
  }
  const WeightForm& form = scales.has_value() ? config_.quantization->form.form
                                              : FormOf(Tensor(projection.weights.front()).type);
  job.finish = [=, this, &form](DeviceSpan<std::byte> memory) {
    LinearWeights weights;
    weights.num_parts = projection.num_parts;
    DeviceSpan<std::byte> matrix = memory;
    if (arrangement.has_value()) {
      ASSIGN_OR_RETURN(matrix, Arrange(projection, *arrangement, memory));
      weights.scales.columns = arrangement->columns;
    }
    weights.weight = WeightView::Dense(matrix, form, rows, projection.in_features);
    if (bias != nullptr) {
      weights.bias =
          WeightView::Dense(memory.subspan(bias_at, memory.size() - bias_at), bias->type, 1, rows);
    }
    return Prepare(projection, std::move(weights), scales.has_value() ? &*scales : nullptr, memory,
                   out);
  };
  return absl::OkStatus();
}

absl::Status WeightLoader::LoadLayer(uint32_t layer, const DeviceBuffer& norms,
                                     LayerWeights& weights) {
  weights.spec = table_.layers()[layer];
  for (const TensorRole role : kLayerNorms) {
    const TensorSpec* const norm = table_.Find(role, layer);
    if (norm != nullptr) weights.Norm(role) = LoadNorm(*norm, norms);
  }
  for (const Projection projection : ProjectionsOf(weights.spec)) {
    RETURN_IF_ERROR(LoadLinear(table_.Of(projection, layer), &weights.Linear(projection)));
  }
  return absl::OkStatus();
}

void WeightLoader::ReadTheRest() {
  std::set<std::string> read;
  for (const WeightJob& job : jobs_) {
    for (const WeightJob::Part& part : job.parts) read.insert(part.name);
  }
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (read.count(name) == 0) jobs_.emplace_back().parts.push_back({name, tensor, 0});
  }
}

absl::Status WeightLoader::LoadLayerVectors(ModelWeights& weights) {
  std::vector<float> offsets;
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::span<const float> of_layer = balance_.key_offsets(layer);
    offsets.insert(offsets.end(), of_layer.begin(), of_layer.end());
  }
  ASSIGN_OR_RETURN(weights.key_offsets, LayerVectors::Upload(device_, offsets, config_.num_layers));
  ASSIGN_OR_RETURN(weights.sinks, LayerVectors::Upload(device_, SinksOf(config_, checkpoint_),
                                                       config_.num_layers));
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    weights.layers[layer].key_offsets = weights.key_offsets.Of(layer);
    weights.layers[layer].sinks = weights.sinks.Of(layer);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> WeightLoader::Load(const WeightJobOptions& options) {
  ModelWeights weights;
  RETURN_IF_ERROR(Allocate(weights));
  const std::string& name = table_.Get(TensorRole::kEmbedding).stored;
  const HostTensor& embedding = Tensor(name);
  WeightJob& job = jobs_.emplace_back();
  job.parts.push_back({name, embedding, 0});
  job.target = weights.embedding_buffer.bytes();
  weights.embedding =
      WeightView::Dense(job.target, embedding.type, config_.vocab_size, config_.hidden_size);
  weights.layers.resize(config_.num_layers);
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    RETURN_IF_ERROR(LoadLayer(layer, weights.norm_buffer, weights.layers[layer]));
  }
  weights.final_norm = LoadNorm(table_.Get(TensorRole::kFinalNorm), weights.norm_buffer);
  if (!config_.tie_word_embeddings) {
    RETURN_IF_ERROR(LoadLinear(table_.Of(Projection::kOutput), &weights.lm_head));
  }
  if (options.hasher != nullptr) ReadTheRest();
  RETURN_IF_ERROR(RunWeightJobs(device_, jobs_, options));
  RETURN_IF_ERROR(LoadLayerVectors(weights));
  if (config_.tie_word_embeddings) {
    WeightView outputs = weights.embedding;
    if (config_.shard.has_value()) {
      outputs.data += outputs.form.Bytes(config_.shard->outputs.first, outputs.cols);
      outputs.rows = config_.num_outputs();
    }
    ASSIGN_OR_RETURN(weights.lm_head, ops_.PrepareLinear({.weight = outputs, .bias = {}}));
  }
  return weights;
}

}  // namespace

MatrixView& LayerWeights::Norm(TensorRole role) {
  switch (role) {
    case TensorRole::kAttentionNorm:
      return attention_norm;
    case TensorRole::kFeedForwardNorm:
      return mlp_norm;
    case TensorRole::kQueryNorm:
      return q_norm;
    case TensorRole::kPostAttentionNorm:
      return post_attention_norm;
    case TensorRole::kPostFeedForwardNorm:
      return post_mlp_norm;
    default:
      RI_CHECK(role == TensorRole::kKeyNorm);
      return k_norm;
  }
}

std::unique_ptr<PreparedLinear>& LayerWeights::Linear(Projection projection) {
  switch (projection) {
    case Projection::kQkv:
      return qkv;
    case Projection::kAttentionOutput:
      return o;
    case Projection::kRouter:
      return router;
    case Projection::kGateUp:
      return gate_up;
    default:
      RI_CHECK(projection == Projection::kDown);
      return down;
  }
}

namespace {

// Checks that matrices that are multiplied as one have their groups of input features alike.
absl::Status CheckColumns(const ModelConfig& config, const ModelTable& table,
                          const Checkpoint& checkpoint, const ProjectionSpec& projection) {
  const StoredForm& form = config.quantization->form;
  std::optional<std::vector<int32_t>> columns;
  for (const std::string& name : projection.weights) {
    const auto codes = table.stored().at(name).may_be_coded()
                           ? FindCodes(config.quantization, checkpoint, name)
                           : std::optional<CodedTensors>();
    if (!codes.has_value()) continue;
    ASSIGN_OR_RETURN(std::vector<int32_t> of_name,
                     ColumnsByGroup(form, *codes, checkpoint, projection.in_features));
    if (projection.num_parts > 1 && !of_name.empty()) {
      return absl::UnimplementedError(
          absl::StrCat(checkpoint.folder(), ": tensor \"", codes->groups,
                       "\" orders input features of an expert (act order), which is not supported "
                       "for experts; desc_act: false is"));
    }
    if (columns.has_value() && *columns != of_name) {
      return absl::UnimplementedError(
          absl::StrCat(checkpoint.folder(), ": tensor \"", codes->groups,
                       "\" groups input features unlike \"", projection.weights.front(),
                       "\", which is multiplied together with it; the same groups "
                       "are supported, as they come from one calibration"));
    }
    columns = std::move(of_name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  const ModelTable table(config);
  std::set<std::string> used;
  for (const auto& [name, stored] : table.stored()) {
    const auto codes = stored.may_be_coded() ? FindCodes(config.quantization, checkpoint, name)
                                             : std::optional<CodedTensors>();
    if (codes.has_value()) {
      RETURN_IF_ERROR(CheckCodes(*config.quantization, checkpoint, name, stored.shape));
      used.insert({codes->codes, codes->scales, codes->zeros, codes->groups, codes->shape});
      continue;
    }
    ASSIGN_OR_RETURN(const HostTensor tensor, checkpoint.Find(name, stored.shape));
    used.insert(name);
    if (!HasScales(tensor.type)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.folder(), ": tensor \"", name, "\" is ",
        std::string(WeightTypeName(tensor.type)), ", which ",
        config.float4.has_value()          ? "only matrices of layers may be"
        : !config.quantization.has_value() ? "needs a quantization_config in config.json"
        : stored.may_be_coded()            ? "does not belong to " + config.quantization->ToString()
                                           : "only matrices of layers may be"));
  }
  for (int64_t layer = 0; config.quantization.has_value() && layer < config.num_layers; ++layer) {
    for (const Projection projection : ProjectionsOf(table.layers()[static_cast<size_t>(layer)])) {
      RETURN_IF_ERROR(CheckColumns(config, table, checkpoint, table.Of(projection, layer)));
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (used.count(name) == 0 && !MayIgnore(config, table, name)) {
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
