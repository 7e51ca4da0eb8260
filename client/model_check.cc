#include "client/model_check.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/model_folder.h"
#include "gpu_worker/tokenizer/tokenizer.h"

namespace retroinfer::client {

absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder) {
  ModelFiles files;
  RETURN_IF_ERROR(RequireModelFolder(folder));
  ASSIGN_OR_RETURN(files.config, LoadModelConfig(folder));
  RETURN_IF_ERROR(LoadGenerationConfig(folder, files.config).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(folder));
  if (tokenizer->vocab_size() > files.config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, ": the tokenizer has ", tokenizer->vocab_size(), " tokens, the model's vocabulary ",
        files.config.vocab_size, ": they do not belong together"));
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  files.weight_bytes = checkpoint.total_bytes();
  return files;
}

}  // namespace retroinfer::client
