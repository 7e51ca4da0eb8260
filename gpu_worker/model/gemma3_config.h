// What config.json says of a Gemma 3, beyond what all families say.
#pragma once

#include "absl/status/status.h"
#include "common/json/json_reader.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Reads windows (`layer_types`, or each `sliding_window_pattern`th layer without one), the RoPE of
// both kinds of layers, `query_pre_attn_scalar`, and what is of the family: norms, GELU by tanh,
// and embeddings times the root of the hidden size, in the type that config.json names.
//
// REQUIRES: sizes, positions and dtype of `model` are read.
// Returns:  INVALID_ARGUMENT for wrong values; UNIMPLEMENTED for soft caps, another activation,
//           attention to both sides, and a model without a layer that sees all tokens.
absl::Status ReadGemma3(const common::JsonReader& config, ModelConfig& model);

}  // namespace retroinfer
