// A model in GGUF: configuration, tokenizer and weights of the same files.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/model/stored_model.h"

namespace retroinfer {

// Opens `path`, and the other parts of it if it is split; the model is called `name`.
//
// Returns: as GgufFiles::Open.
absl::StatusOr<std::unique_ptr<StoredModel>> OpenGgufModel(const std::string& path,
                                                           const std::string& name);

}  // namespace retroinfer
