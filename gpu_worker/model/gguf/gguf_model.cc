#include "gpu_worker/model/gguf/gguf_model.h"

#include <utility>

#include "common/status/status_macros.h"
#include "gpu_worker/model/gguf/gguf_config.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "gpu_worker/model/gguf/gguf_tensors.h"
#include "gpu_worker/model/gguf/gguf_tokenizer.h"

namespace retroinfer {
namespace {

class GgufModel : public StoredModel {
 public:
  GgufModel(std::shared_ptr<const GgufFiles> files, std::string name)
      : files_(std::move(files)), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  absl::StatusOr<ModelConfig> ReadConfig() const override { return ReadGgufConfig(*files_); }
  absl::StatusOr<GenerationConfig> ReadGeneration(const ModelConfig& config) const override {
    return ReadGgufGeneration(*files_, config);
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer() const override {
    return ReadGgufTokenizer(*files_);
  }
  absl::StatusOr<Checkpoint> OpenWeights(const ModelConfig& config) const override {
    ASSIGN_OR_RETURN(GgufTensors tensors, GgufTensors::Create(files_, config));
    return Checkpoint::Of(files_->path(), "its metadata",
                          std::make_unique<GgufTensors>(std::move(tensors)));
  }
  bool HasWeights() const override { return !files_->tensors().empty(); }

 private:
  const std::shared_ptr<const GgufFiles> files_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoredModel>> OpenGgufModel(const std::string& path,
                                                           const std::string& name) {
  ASSIGN_OR_RETURN(GgufFiles files, GgufFiles::Open(path));
  return std::make_unique<GgufModel>(std::make_shared<const GgufFiles>(std::move(files)), name);
}

}  // namespace retroinfer
