// Experts as gpt-oss stores them: of each matrix those of all experts in one tensor, in MXFP4 (OCP
// Microscaling Formats 1.0: codes of 4 bits, e2m1, and an exponent of 8 bits, e8m0, for each 32 of
// a row), rows of gate and up in turn; and biases alike. Each becomes a tensor for each expert, of
// numbers in bf16, which hold all of them exactly, while it is read.
//
// Why numbers: forms of weights have scales in f32 and codes of whole numbers, and kernels for
// those. Exponents would be a form of their own.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Takes tensors of experts ("mlp.experts.7.gate_proj.weight") for the stacked ones
// ("mlp.experts.gate_up_proj_blocks"); the files stay as they are. Does nothing to other families.
//
// Returns: INVALID_ARGUMENT, naming the tensor, if one is missing or has another shape or type;
//          UNIMPLEMENTED if experts are stacked in another form. `checkpoint` is unchanged then.
absl::Status UnstackExperts(const ModelConfig& config, Checkpoint& checkpoint);

// What people are told of that when the model is loaded; empty for other families.
std::string_view NoteOfUnstacking(const ModelConfig& config);

}  // namespace retroinfer
