#include "gpu_worker/ops/model/cuda/cuda_model_ops.h"

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/cuda/arrange_codes.h"
#include "gpu_worker/ops/model/cuda/embedding.h"
#include "gpu_worker/ops/model/cuda/grouped_linear.h"
#include "gpu_worker/ops/model/cuda/linear.h"
#include "gpu_worker/ops/model/cuda/rms_norm.h"
#include "gpu_worker/ops/model/cuda/rope.h"
#include "gpu_worker/ops/model/cuda/route_experts.h"
#include "gpu_worker/ops/model/cuda/sampling.h"
#include "gpu_worker/ops/model/cuda/silu_mul.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<PreparedLinear>> CudaModelOps::PrepareLinear(
    const LinearWeights& weights) {
  return cuda::PrepareLinear(linear_, weights);
}

absl::Status CudaModelOps::ArrangeCodes(Stream& stream, const ArrangeCodesArgs& args) {
  return cuda::ArrangeCodes(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::Embedding(Stream& stream, const EmbeddingArgs& args) {
  return cuda::Embedding(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::RmsNorm(Stream& stream, const RmsNormArgs& args) {
  return cuda::RmsNorm(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::Linear(Stream& stream, const LinearArgs& args) {
  return cuda::Linear(linear_, CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::GatedLinear(Stream& stream, const GatedLinearArgs& args) {
  RETURN_IF_ERROR(CheckGatedLinear(args, activation_dtype()));
  if (cuda::FusesGatedLinear(args)) return cuda::GatedLinear(CudaStream::Of(stream), args);
  return GatedLinearInSteps(*this, stream, args);
}

absl::Status CudaModelOps::RouteExperts(Stream& stream, const RouteExpertsArgs& args) {
  return cuda::RouteExperts(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::GroupedGatedLinear(Stream& stream, const GroupedGatedLinearArgs& args) {
  return cuda::GroupedGatedLinear(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::GroupedLinear(Stream& stream, const GroupedLinearArgs& args) {
  return cuda::GroupedLinear(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::RopeTable(Stream& stream, const RopeTableArgs& args) {
  return cuda::RopeTable(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::Rope(Stream& stream, const RopeArgs& args) {
  return cuda::Rope(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::SiluMul(Stream& stream, const SiluMulArgs& args) {
  return cuda::SiluMul(CudaStream::Of(stream), args);
}

absl::Status CudaModelOps::Sampling(Stream& stream, const SamplingArgs& args) {
  return cuda::Sampling(CudaStream::Of(stream), args);
}

}  // namespace retroinfer
