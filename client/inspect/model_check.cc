#include "client/inspect/model_check.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/kv/kv_format.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/channel_balance.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/model/rope_scaling.h"
#include "gpu_worker/model/shard_checkpoint.h"
#include "gpu_worker/model/shard_config.h"
#include "gpu_worker/model/stored_model.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "text/tokenizer/chat_template.h"
#include "text/tokenizer/same_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer::client {

namespace {

absl::Status CheckKeys(const ModelConfig& config, const Checkpoint& checkpoint,
                       const std::string& kv_dtype) {
  if (kv_dtype == "auto") return absl::OkStatus();
  ASSIGN_OR_RETURN(const KvFormat format, KvFormatNamed(kv_dtype));
  const int num_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return CheckBiasesOf(config, checkpoint, format, num_threads);
}

absl::StatusOr<ModelConfig> ReadConfig(const StoredModel& model, const ModelFileOptions& options) {
  ASSIGN_OR_RETURN(ModelConfig config, model.ReadConfig());
  RETURN_IF_ERROR(ApplyRopeScaling(options.rope_scaling, config));
  return config;
}

void TakeLarger(size_t bytes_cpu, size_t bytes_gpu, ModelFiles& files) {
  files.weight_bytes_cpu = std::max(files.weight_bytes_cpu, bytes_cpu);
  files.weight_bytes_gpu = std::max(files.weight_bytes_gpu, bytes_gpu);
}

// What the largest part of the weights takes.
absl::Status SizeParts(const Checkpoint& checkpoint, KeptWeights keep, int num_ranks,
                       ModelFiles& files) {
  if (num_ranks == 1) {
    TakeLarger(KeptWeightBytes(files.config, checkpoint, keep, kCpuNeeds),
               KeptWeightBytes(files.config, checkpoint, keep, kCudaNeeds), files);
    return absl::OkStatus();
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    ASSIGN_OR_RETURN(const ModelConfig part,
                     ShardConfig(files.config, {.rank = rank, .num_ranks = num_ranks}));
    ASSIGN_OR_RETURN(const Checkpoint of_rank, ShardCheckpoint(files.config, part, checkpoint));
    TakeLarger(KeptWeightBytes(part, of_rank, keep, kCpuNeeds),
               KeptWeightBytes(part, of_rank, keep, kCudaNeeds), files);
  }
  return absl::OkStatus();
}

// What follows from a configuration alone.
absl::StatusOr<ModelFiles> FilesOfConfig(const ModelConfig& config,
                                         const ModelFileOptions& options) {
  ModelFiles files;
  files.has_weights = false;
  files.chat_template = "none";
  files.config = config;
  ASSIGN_OR_RETURN(const KeptWeights keep, KeptWeightsNamed(options.weights_dtype, files.config));
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    ASSIGN_OR_RETURN(const ModelConfig part,
                     ShardConfig(files.config, {.rank = rank, .num_ranks = options.num_ranks}));
    TakeLarger(KeptRandomWeightBytes(part, keep, kCpuNeeds),
               KeptRandomWeightBytes(part, keep, kCudaNeeds), files);
  }
  files.weights_dtype = WeightsDtype(files.config, keep);
  files.weight_scales = WeightScalesFrom(files.config, keep);
  return files;
}

}  // namespace

absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& path,
                                          const ModelFileOptions& options) {
  const bool is_config = std::filesystem::path(path).filename() == "config.json";
  const std::string folder = is_config && !options.needs_weights
                                 ? std::filesystem::absolute(path).parent_path().string()
                                 : path;
  ModelFiles files;
  ASSIGN_OR_RETURN(const std::unique_ptr<StoredModel> model, StoredModel::Open(folder));
  if (!options.needs_weights && (is_config || !model->HasWeights())) {
    ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig(*model, options));
    return FilesOfConfig(config, options);
  }
  ASSIGN_OR_RETURN(files.config, ReadConfig(*model, options));
  RETURN_IF_ERROR(model->ReadGeneration(files.config).status());
  ASSIGN_OR_RETURN(files.tokenizer, model->ReadTokenizer());
  const Tokenizer* const tokenizer = files.tokenizer.get();
  if (tokenizer->vocab_size() > files.config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, ": the tokenizer has ", tokenizer->vocab_size(), " tokens, the model's vocabulary ",
        files.config.vocab_size, ": they do not belong together"));
  }
  absl::StatusOr<ChatTemplate> chat_template =
      options.chat_template_file.empty()
          ? ChatTemplate::Create(*tokenizer)
          : ChatTemplate::CreateFromFile(*tokenizer, options.chat_template_file);
  if (!chat_template.ok()) {
    return absl::Status(
        chat_template.status().code(),
        absl::StrCat("--chat-template: ", std::string(chat_template.status().message())));
  }
  files.chat_template = chat_template->source();
  files.chat_template_problem = chat_template->problem();
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, model->OpenWeights(files.config));
  TakeStoredType(checkpoint, files.config);
  RETURN_IF_ERROR(CheckTensors(files.config, checkpoint));
  RETURN_IF_ERROR(CheckKeys(files.config, checkpoint, options.kv_dtype));
  ASSIGN_OR_RETURN(const KeptWeights keep, KeptWeightsNamed(options.weights_dtype, files.config));
  RETURN_IF_ERROR(SizeParts(checkpoint, keep, options.num_ranks, files));
  files.weights_dtype = WeightsDtype(files.config, keep);
  files.weight_scales = WeightScalesFrom(files.config, keep);
  return files;
}

absl::StatusOr<ModelFiles> ReadModelShape(const std::string& name,
                                          const ModelFileOptions& options) {
  ASSIGN_OR_RETURN(ModelConfig config, NamedModelShape(name));
  RETURN_IF_ERROR(ApplyRopeScaling(options.rope_scaling, config));
  return FilesOfConfig(config, options);
}

absl::StatusOr<ModelFiles> ReadDraftModelFiles(const std::string& path, const ModelFiles& served) {
  absl::StatusOr<ModelFiles> files = ReadModelFiles(path, {.needs_weights = false});
  absl::Status status = files.status();
  if (status.ok() && files->tokenizer != nullptr && served.tokenizer != nullptr) {
    status = CheckSameTokens(*served.tokenizer, *files->tokenizer);
  }
  if (status.ok()) return files;
  return absl::Status(status.code(),
                      absl::StrCat("--draft-model: ", std::string(status.message())));
}

}  // namespace retroinfer::client
