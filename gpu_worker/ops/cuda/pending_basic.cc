#include "gpu_worker/ops/cuda/sampling.h"

namespace retroinfer::cuda {

absl::Status Sampling(CudaStream&, const SamplingArgs&) {
  return absl::UnimplementedError("Sampling");
}
}  // namespace retroinfer::cuda
