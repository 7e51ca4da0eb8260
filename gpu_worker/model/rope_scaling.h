// Another scaling of a model's RoPE than its config.json asks for: setting --rope-scaling.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Checks how `text` is written: "yarn:FACTOR" or "yarn:FACTOR:ORIGINAL", "yarn:4:32768" or
// "yarn:4:32K".
//
// Returns: INVALID_ARGUMENT, with what is accepted, for anything else.
absl::Status CheckRopeScaling(std::string_view text);

// Gives `config` the RoPE, and the context, that it would have if its config.json had
//   "rope_scaling": {"rope_type": "yarn", "factor": FACTOR,
//                    "original_max_position_embeddings": ORIGINAL}
// in the place of what it has. Without ORIGINAL that stays what config.json says, or else becomes
// max_position_embeddings. An empty `text` changes nothing.
//
// Returns: INVALID_ARGUMENT as CheckRopeScaling, and where there is no ORIGINAL and the model was
//          trained with a scaling of another kind, or where its queries grow
//          with their positions; `config` is unchanged then.
absl::Status ApplyRopeScaling(std::string_view text, ModelConfig& config);

// Makes `config` one of a model that serves contexts of `max_model_len` tokens; 0: of all that it
// is made for. LongRoPE has factors for contexts up to the original one, and others for all that
// are longer: a served model has one of the two.
void ServeContexts(int64_t max_model_len, ModelConfig& config);

// The scaling with which the makers of a model say that it serves longer contexts than its
// config.json asks for, in the form of `text` above: YaRN for Qwen2, Qwen2.5 and Qwen3, by their
// READMEs. None if there is none, or the model has a scaling.
std::optional<std::string> DocumentedRopeScaling(const ModelConfig& config);

}  // namespace retroinfer
