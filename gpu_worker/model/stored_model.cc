#include "gpu_worker/model/stored_model.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/float4_matrices.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "gpu_worker/model/gguf/gguf_model.h"
#include "gpu_worker/model/missing_weights.h"
#include "gpu_worker/model/model_folder.h"
#include "gpu_worker/model/padded_heads.h"
#include "gpu_worker/model/stacked_experts.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamedMax = 8;

bool HasSafetensors(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

class FolderModel : public StoredModel {
 public:
  explicit FolderModel(std::string folder) : folder_(std::move(folder)) {}

  std::string name() const override { return FolderName(folder_); }
  absl::StatusOr<ModelConfig> ReadConfig() const override { return LoadModelConfig(folder_); }
  absl::StatusOr<GenerationConfig> ReadGeneration(const ModelConfig& config) const override {
    return LoadGenerationConfig(folder_, config);
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer() const override {
    return Tokenizer::Load(folder_);
  }
  absl::StatusOr<Checkpoint> OpenWeights(const ModelConfig& config) const override {
    ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder_));
    RETURN_IF_ERROR(PadHeads(config, checkpoint));
    RETURN_IF_ERROR(UnstackExperts(config, checkpoint));
    RETURN_IF_ERROR(UnpackFloat4(config, checkpoint));
    return checkpoint;
  }
  bool HasWeights() const override {
    return HasSafetensors(folder_) || !InsteadOfWeights(folder_).empty();
  }

 private:
  const std::string folder_;
};

// By its name or, of files that have no ending, as some programs keep them, by its first bytes.
bool IsGguf(const std::string& path) {
  std::error_code error;
  if (absl::EndsWith(path, ".gguf")) {
    return fs::exists(path, error) && !fs::is_directory(path, error);
  }
  if (!fs::is_regular_file(path, error)) return false;
  constexpr std::string_view kMagic = "GGUF";
  char begin[kMagic.size()] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return std::string_view(begin, sizeof(begin)) == kMagic;
}

absl::Status TooMany(const std::string& folder, std::vector<std::string> models) {
  const size_t count = models.size();
  if (count > kNamedMax) models.resize(kNamedMax);
  for (std::string& model : models) model = fs::path(model).filename().string();
  return absl::InvalidArgumentError(absl::StrCat(
      folder, " has ", count, " models in GGUF; name one of them: ", absl::StrJoin(models, ", "),
      count > kNamedMax ? " ..." : ""));
}

}  // namespace

std::string FolderName(const std::string& path) {
  const fs::path folder = fs::path(path).lexically_normal();
  return folder.has_filename() ? folder.filename().string()
                               : folder.parent_path().filename().string();
}

absl::StatusOr<std::unique_ptr<StoredModel>> StoredModel::Open(const std::string& path) {
  std::error_code error;
  if (IsGguf(path)) return OpenGgufModel(path, GgufModelName(path));
  if (fs::is_directory(path, error) && !HasSafetensors(path)) {
    const std::vector<std::string> models = GgufModelsIn(path);
    if (models.size() == 1) return OpenGgufModel(models.front(), FolderName(path));
    if (models.size() > 1) return TooMany(path, models);
  }
  RETURN_IF_ERROR(RequireModelFolder(path));
  return std::make_unique<FolderModel>(path);
}

}  // namespace retroinfer
