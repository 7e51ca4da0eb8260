#include "gpu_worker/server/model_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/random_weights.h"
#include "gpu_worker/tokenizer/byte_tokenizer.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

std::string FolderName(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
  return folder.has_filename() ? folder.filename().string()
                               : folder.parent_path().filename().string();
}

}  // namespace

absl::StatusOr<ModelSource> ModelSource::Open(const WorkerOptions& options) {
  ModelSource source;
  RETURN_IF_ERROR(options.load_format == "dummy" ? source.OpenDummy(options)
                                                 : source.OpenFolder(options.model_folder));
  const int32_t num_tokens = source.tokenizer_->vocab_size();
  if (num_tokens > source.config_.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.name_, ": the tokenizer has ", num_tokens, " tokens, the model's vocabulary ",
        source.config_.vocab_size, ": they do not belong together"));
  }
  return source;
}

absl::Status ModelSource::OpenFolder(const std::string& folder) {
  name_ = FolderName(folder);
  ASSIGN_OR_RETURN(config_, LoadModelConfig(folder));
  ASSIGN_OR_RETURN(generation_, LoadGenerationConfig(folder, config_));
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(folder));
  ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(folder));
  return absl::OkStatus();
}

absl::Status ModelSource::OpenDummy(const WorkerOptions& options) {
  const std::string& folder = options.model_folder;
  if (options.model_shape.empty()) {
    name_ = FolderName(folder);
    ASSIGN_OR_RETURN(config_, LoadModelConfig(folder));
    ASSIGN_OR_RETURN(generation_, LoadGenerationConfig(folder, config_));
  } else {
    name_ = options.model_shape;
    ASSIGN_OR_RETURN(config_, NamedModelShape(options.model_shape));
  }
  int64_t longest = options.max_model_len;
  if (longest == 0 && options.synthetic_context != 0) longest = kSyntheticRequestTokens;
  config_.context_length = std::max(config_.context_length, options.synthetic_context + longest);

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = absl::NotFoundError("no folder");
  if (!folder.empty()) tokenizer = Tokenizer::Load(folder);
  if (absl::IsNotFound(tokenizer.status())) {
    spdlog::info("no tokenizer: each byte of a text is a token");
    tokenizer = CreateByteTokenizer();
  }
  RETURN_IF_ERROR(tokenizer.status());
  tokenizer_ = *std::move(tokenizer);
  return absl::OkStatus();
}

size_t ModelSource::weight_bytes() const {
  return checkpoint_.has_value() ? checkpoint_->total_bytes() : RandomWeightBytes(config_);
}

absl::StatusOr<ModelSource::Loaded> ModelSource::Load(Device& device, Ops& ops) const {
  Loaded loaded;
  if (!checkpoint_.has_value()) {
    spdlog::info("random weights: what is generated means nothing");
    loaded.fingerprint = RandomModelFingerprint(config_);
    ASSIGN_OR_RETURN(loaded.weights, RandomModelWeights(device, ops, config_));
    return loaded;
  }
  int last_tenth = -1;
  const auto progress = [&last_tenth](size_t done, size_t total) {
    const int tenth = total == 0 ? 10 : static_cast<int>(done * 10 / total);
    if (tenth != last_tenth) spdlog::info("weights: {} of {} MiB", done >> 20, total >> 20);
    last_tenth = tenth;
  };
  ASSIGN_OR_RETURN(
      loaded.fingerprint,
      ModelFingerprint(config_, *checkpoint_, {.num_threads = device.info().num_processors}));
  ASSIGN_OR_RETURN(loaded.weights, LoadModelWeights(device, ops, config_, *checkpoint_, progress));
  return loaded;
}

}  // namespace retroinfer
