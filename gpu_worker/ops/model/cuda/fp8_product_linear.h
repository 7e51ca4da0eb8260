// A matrix of e4m3 codes whose products with many rows are of codes by codes: activations are
// rounded (fp8_activations.h). Compute capability 9.0 alone.
#pragma once

#include <memory>

#include "gpu_worker/ops/model/cuda/fp8_linear.h"

namespace retroinfer::cuda {

class Fp8ProductLinear final : public Fp8Linear {
 public:
  // Whether it is asked for, and cuBLASLt has such products for the weight: each scale is for whole
  // output features, and 16 divides their number.
  static bool Takes(const LinearWeights& weights);

  // As Fp8Linear's. REQUIRES: Takes(weights).
  static absl::StatusOr<std::unique_ptr<CudaLinear>> Create(LinearContext& context,
                                                            CudaStream& stream,
                                                            const LinearWeights& weights);

  // Unpacks tiles where cuBLASLt has no product of codes.
  absl::StatusOr<bool> Many(LinearContext& context, CudaStream& stream,
                            const LinearArgs& args) const override;

 private:
  using Fp8Linear::Fp8Linear;

  // Rounds the activations and multiplies codes by codes, in the memory of a tile: as many rows at
  // a time as that holds. Returns: as Many.
  absl::StatusOr<bool> MultiplyCodes(LinearContext& context, CudaStream& stream,
                                     const LinearArgs& args) const;
};

}  // namespace retroinfer::cuda
