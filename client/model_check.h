// What can be wrong with a model folder, found before anything is started or allocated for it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer::client {

struct ModelFiles {
  ModelConfig config;
  size_t weight_bytes = 0;
};

// Reads all that the worker will read of `folder` but the weights themselves, of which it reads the
// headers.
//
// Returns: NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED for a folder that the worker would refuse.
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder);

}  // namespace retroinfer::client
