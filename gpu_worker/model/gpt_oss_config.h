// What config.json says of a gpt-oss, beyond what all families say.
#pragma once

#include "absl/status/status.h"
#include "common/json/json_reader.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Reads windows, and sets what is of the family: biases everywhere, sinks, the clamped SwiGLU of
// its experts.
//
// REQUIRES: sizes of `model` are read.
// Returns:  as ReadLayerWindows; UNIMPLEMENTED for experts in another form than MXFP4, for another
//           limit or slope of SwiGLU, and for a model without biases.
absl::Status ReadGptOss(const common::JsonReader& config, ModelConfig& model);

}  // namespace retroinfer
