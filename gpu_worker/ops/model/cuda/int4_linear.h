// A matrix that the CUDA backend keeps as 4-bit codes (int4_weight.h). Few rows are multiplied by
// the codes; for many, tiles of the weight are unpacked to bf16.
#pragma once

#include <memory>
#include <vector>

#include "gpu_worker/ops/model/cuda/int4_weight.h"
#include "gpu_worker/ops/model/cuda/tiled_linear.h"

namespace retroinfer::cuda {

class Int4Linear final : public TiledLinear {
 public:
  // From codes, or from numbers, which are rounded; without its bias. Waits for the work.
  //
  // REQUIRES: HasWeightForm(weights.weight.form).
  // Returns:  as NotFinite.
  static absl::StatusOr<std::unique_ptr<CudaLinear>> Create(LinearContext& context,
                                                            CudaStream& stream,
                                                            const LinearWeights& weights);

  // Has no weight before Pack.
  explicit Int4Linear(const WeightView& weight);
  // What Create does, but for the memory of a tile.
  absl::Status Pack(LinearContext& context, CudaStream& stream, const LinearWeights& weights);
  Int4Weight weight() const;
  GroupedWeight Grouped() const override;

 private:
  absl::Status PackCodes(LinearContext& context, CudaStream& stream, const LinearWeights& weights);
  absl::Status RoundNumbers(LinearContext& context, CudaStream& stream,
                            const LinearWeights& weights);
  absl::Status LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const override;
  cudaError_t Unpack(int64_t first, int64_t count, void* out, cudaStream_t stream) const override;

  const int64_t group_cols_;
  DeviceBuffer codes_;
  DeviceBuffer groups_;
  DeviceBuffer columns_;  // empty: in order
};

}  // namespace retroinfer::cuda
