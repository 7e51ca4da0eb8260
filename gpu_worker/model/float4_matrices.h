// Matrices of floats of 4 bits (float4_form.h) as numbers: each becomes a tensor in bf16 while it
// is read. A number is its code times the scale of its group, and times the global scale of its
// matrix or divided by that, in f32, rounded to bf16.
//
// Why numbers: as of experts in MXFP4 (stacked_experts.h), kernels have codes of whole numbers. So
// --weights-dtype fp8 and int4 round them as they round numbers.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Takes a matrix of numbers for the tensors of each that is stored as `config.float4` says; the
// files stay as they are. Matrices that are stored as numbers stay. Does nothing where
// `config.float4` is none.
//
// Returns: INVALID_ARGUMENT, naming the tensor, if one of a matrix is missing, or has another shape
//          or type, or the matrix is there as numbers, too. `checkpoint` is unchanged then. What
//          scales hold is checked while they are read (TensorCoding::Check).
absl::Status UnpackFloat4(const ModelConfig& config, Checkpoint& checkpoint);

}  // namespace retroinfer
