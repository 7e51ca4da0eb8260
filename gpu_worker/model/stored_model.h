// A model as people have it: a folder in the Hugging Face layout, or a file in GGUF.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/model_config.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Threads: immutable.
class StoredModel {
 public:
  // Looks what `path` is; a file in GGUF needs no ending where its first bytes say so. A folder
  // without *.safetensors that has one model in GGUF is that model.
  //
  // Returns: as RequireModelFolder and GgufFiles::Open; INVALID_ARGUMENT for a folder with several
  //          models in GGUF.
  static absl::StatusOr<std::unique_ptr<StoredModel>> Open(const std::string& path);

  virtual ~StoredModel() = default;

  // Of the folder, or of the file without its ending.
  virtual std::string name() const = 0;
  // Each reads and checks what it returns.
  virtual absl::StatusOr<ModelConfig> ReadConfig() const = 0;
  virtual absl::StatusOr<GenerationConfig> ReadGeneration(const ModelConfig& config) const = 0;
  // NOT_FOUND if there is none.
  virtual absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer() const = 0;
  // Opens the weights: their bytes are not read.
  virtual absl::StatusOr<Checkpoint> OpenWeights(const ModelConfig& config) const = 0;
  // Whether there are weights, or what people have in their place.
  virtual bool HasWeights() const = 0;
};

// The last part of a path to a folder, whether a slash ends it or not.
std::string FolderName(const std::string& path);

}  // namespace retroinfer
