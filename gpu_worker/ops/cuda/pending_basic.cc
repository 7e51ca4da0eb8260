#include "gpu_worker/ops/cuda/linear.h"
#include "gpu_worker/ops/cuda/sampling.h"

namespace retroinfer::cuda {

absl::Status Sampling(CudaStream&, const SamplingArgs&) {
  return absl::UnimplementedError("Sampling");
}
absl::StatusOr<std::unique_ptr<LinearContext>> LinearContext::Create(CudaDevice&) {
  return std::make_unique<LinearContext>();
}
absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext&,
                                                              const LinearWeights&) {
  return absl::UnimplementedError("linear");
}
absl::Status Linear(LinearContext&, CudaStream&, const LinearArgs&) {
  return absl::UnimplementedError("linear");
}

}  // namespace retroinfer::cuda
