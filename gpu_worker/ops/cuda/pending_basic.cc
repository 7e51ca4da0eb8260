#include "gpu_worker/ops/cuda/embedding.h"
#include "gpu_worker/ops/cuda/layer_kv.h"
#include "gpu_worker/ops/cuda/linear.h"
#include "gpu_worker/ops/cuda/rms_norm.h"
#include "gpu_worker/ops/cuda/rope.h"
#include "gpu_worker/ops/cuda/sampling.h"
#include "gpu_worker/ops/cuda/silu_mul.h"

namespace retroinfer::cuda {

absl::Status Embedding(CudaStream&, const EmbeddingArgs&) {
  return absl::UnimplementedError("Embedding");
}
absl::Status RmsNorm(CudaStream&, const RmsNormArgs&) {
  return absl::UnimplementedError("RmsNorm");
}
absl::Status RopeTable(CudaStream&, const RopeTableArgs&) {
  return absl::UnimplementedError("RopeTable");
}
absl::Status Rope(CudaStream&, const RopeArgs&) { return absl::UnimplementedError("Rope"); }
absl::Status SiluMul(CudaStream&, const SiluMulArgs&) {
  return absl::UnimplementedError("SiluMul");
}
absl::Status StoreLayerKv(CudaStream&, const StoreLayerKvArgs&) {
  return absl::UnimplementedError("StoreLayerKv");
}
absl::Status FillDense(CudaStream&, const FillDenseArgs&) {
  return absl::UnimplementedError("FillDense");
}
absl::Status ReadDense(CudaStream&, const ReadDenseArgs&) {
  return absl::UnimplementedError("ReadDense");
}
absl::Status AppendDense(CudaStream&, const AppendDenseArgs&) {
  return absl::UnimplementedError("AppendDense");
}
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
