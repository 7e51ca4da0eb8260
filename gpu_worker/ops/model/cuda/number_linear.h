// A matrix that the CUDA backend keeps as numbers, in bf16.
#pragma once

#include <memory>

#include "gpu_worker/ops/model/cuda/cuda_linear.h"

namespace retroinfer::cuda {

class NumberLinear final : public CudaLinear {
 public:
  // Enqueues the copy of the weight, without its bias.
  //
  // REQUIRES: !weights.weight.form.is_code().
  static absl::StatusOr<std::unique_ptr<CudaLinear>> Create(LinearContext& context,
                                                            CudaStream& stream,
                                                            const LinearWeights& weights);
  // The same of codes of a form that HasWeightForm names, which become bf16. Waits for that.
  // Returns: as NotFinite.
  static absl::StatusOr<std::unique_ptr<CudaLinear>> FromCodes(LinearContext& context,
                                                               CudaStream& stream,
                                                               const LinearWeights& weights);

  absl::StatusOr<bool> Many(LinearContext& context, CudaStream& stream,
                            const LinearArgs& args) const override;
  GroupedWeight Grouped() const override;

 private:
  explicit NumberLinear(const WeightView& weight);

  absl::Status UnpackFp8(LinearContext& context, CudaStream& stream, const LinearWeights& weights);
  absl::Status UnpackInt4(LinearContext& context, CudaStream& stream, const LinearWeights& weights);
  absl::Status LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const override;

  const int64_t padded_in_;
  DeviceBuffer weight_;  // [out_features][padded_in] bf16
};

}  // namespace retroinfer::cuda
