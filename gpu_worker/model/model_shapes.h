// The shapes of well-known models, for runs without a checkpoint.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// The configuration of "llama-3-8b", "llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b",
// "qwen3-30b-a3b", or "tiny" and "tiny-experts" (two layers, a vocabulary of 512, for tests).
//
// Returns: NOT_FOUND, naming those there are.
absl::StatusOr<ModelConfig> NamedModelShape(std::string_view name);

}  // namespace retroinfer
