// A matrix that the CUDA backend keeps as codes, of which features of a tile are unpacked to bf16
// and multiplied, one tile after the other, where there are many rows (fp8_tiles.h).
#pragma once

#include "gpu_worker/ops/model/cuda/cuda_linear.h"

namespace retroinfer::cuda {

class TiledLinear : public CudaLinear {
 public:
  absl::StatusOr<bool> Many(LinearContext& context, CudaStream& stream,
                            const LinearArgs& args) const override;

 protected:
  using CudaLinear::CudaLinear;

  // Takes the memory of a tile, if the weight is multiplied by tiles.
  absl::Status PrepareTile(LinearContext& context) const;

 private:
  // Enqueues the numbers of `count` output features from `first` on, out[count][in_features] bf16.
  virtual cudaError_t Unpack(int64_t first, int64_t count, void* out,
                             cudaStream_t stream) const = 0;
};

}  // namespace retroinfer::cuda
