// A matrix that the CUDA backend keeps as e4m3 codes (fp8_weight.h). Few rows are multiplied by the
// codes; for many, tiles of the weight are unpacked to bf16 (tiled_linear.h).
#pragma once

#include <memory>

#include "gpu_worker/ops/model/cuda/fp8_weight.h"
#include "gpu_worker/ops/model/cuda/tiled_linear.h"

namespace retroinfer::cuda {

class Fp8Linear : public TiledLinear {
 public:
  // From codes, or from numbers, which are rounded; without its bias. Waits for the work.
  //
  // Returns: as NotFinite.
  static absl::StatusOr<std::unique_ptr<CudaLinear>> Create(LinearContext& context,
                                                            CudaStream& stream,
                                                            const LinearWeights& weights);

  // Has no weight before Pack.
  explicit Fp8Linear(const WeightView& weight);
  // What Create does. `scales` are those of codes.
  absl::Status Pack(LinearContext& context, CudaStream& stream, const LinearWeights& weights,
                    const WeightScales& scales);
  Fp8Weight weight() const;
  GroupedWeight Grouped() const override;

 private:
  absl::Status LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const override;
  cudaError_t Unpack(int64_t first, int64_t count, void* out, cudaStream_t stream) const override;

  const int64_t padded_in_;
  DeviceBuffer weight_;  // [out_features][padded_in] codes
  DeviceBuffer scales_;  // f32
  int64_t scale_cols_ = 0;
  int scale_shift_ = 0;
};

}  // namespace retroinfer::cuda
