// Which layers of a model see a window of the newest tokens, as config.json says it.
#pragma once

#include "absl/status/status.h"
#include "common/json/json_reader.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// What transformers takes for keys that are not there.
struct WindowDefaults {
  int64_t tokens = 0;     // of `sliding_window`
  int64_t full_each = 0;  // the layer of so many that sees all tokens, the last of them
};

// Reads `layer_types`, or each `sliding_window_pattern`th layer that sees all, and `sliding_window`
// into `model.layer_windows`, which stays empty where all layers see all tokens.
//
// REQUIRES: model.num_layers is read.
// Returns:  INVALID_ARGUMENT for wrong values; UNIMPLEMENTED for layers of another type, and for a
//           model without a layer that sees all tokens.
absl::Status ReadLayerWindows(const common::JsonReader& config, const WindowDefaults& defaults,
                              ModelConfig& model);

}  // namespace retroinfer
