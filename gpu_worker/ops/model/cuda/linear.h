// The CUDA backend's matrix products (contract in gpu_worker/ops/model/linear.h).
//
// Weights and biases are kept in bf16: those given as f32 or f16 are rounded; or weights in 8 bits.
// Sums are f32; `out` may be bf16 or f32. Few rows (decode) go through a kernel of our own that
// reads the weight once and needs no workspace; many (prefill) through cuBLASLt with one algorithm
// for each shape of weight, whatever the number of rows, so that rows do not depend on each other
// in either. Of weights in 8 bits it gets tiles unpacked to bf16 (fp8_tiles.h), or the codes, with
// activations in codes, too (fp8_activations.h). Each form is a class (cuda_linear.h).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/cuda/linear_context.h"
#include "gpu_worker/ops/model/gated_linear.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer::cuda {

// Takes the memory of the weights from the context's device. Waits for the copy. UNIMPLEMENTED for
// a form of weights that HasWeightForm does not name.
absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext& context,
                                                              const LinearWeights& weights);
// REQUIRES: args.linear comes from PrepareLinear with the same context.
absl::Status Linear(LinearContext& context, CudaStream& stream, const LinearArgs& args);

// Whether GatedLinear takes these arguments, which CheckGatedLinear has passed: that depends on
// `decode`, on the weight, and on how rows are aligned, not on how many there are.
bool FusesGatedLinear(const GatedLinearArgs& args);
// REQUIRES: FusesGatedLinear(args). Leaves gate_up alone.
absl::Status GatedLinear(CudaStream& stream, const GatedLinearArgs& args);

}  // namespace retroinfer::cuda
