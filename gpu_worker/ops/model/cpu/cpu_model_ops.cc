#include "gpu_worker/ops/model/cpu/cpu_model_ops.h"

#include "common/status/status_macros.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/cpu/arrange_codes.h"
#include "gpu_worker/ops/model/cpu/embedding.h"
#include "gpu_worker/ops/model/cpu/grouped_linear.h"
#include "gpu_worker/ops/model/cpu/linear.h"
#include "gpu_worker/ops/model/cpu/rms_norm.h"
#include "gpu_worker/ops/model/cpu/rope.h"
#include "gpu_worker/ops/model/cpu/route_experts.h"
#include "gpu_worker/ops/model/cpu/sampling.h"
#include "gpu_worker/ops/model/cpu/silu_mul.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<PreparedLinear>> CpuModelOps::PrepareLinear(
    const LinearWeights& weights) {
  return cpu::PrepareLinear(device_, precision_, weights);
}

absl::Status CpuModelOps::ArrangeCodes(Stream& stream, const ArrangeCodesArgs& args) {
  return cpu::ArrangeCodes(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::Embedding(Stream& stream, const EmbeddingArgs& args) {
  return cpu::Embedding(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::RmsNorm(Stream& stream, const RmsNormArgs& args) {
  return cpu::RmsNorm(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::Linear(Stream& stream, const LinearArgs& args) {
  return cpu::Linear(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::GatedLinear(Stream& stream, const GatedLinearArgs& args) {
  RETURN_IF_ERROR(CheckGatedLinear(args, activation_dtype()));
  return GatedLinearInSteps(*this, stream, args);
}

absl::Status CpuModelOps::RouteExperts(Stream& stream, const RouteExpertsArgs& args) {
  return cpu::RouteExperts(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::GroupedGatedLinear(Stream& stream, const GroupedGatedLinearArgs& args) {
  return cpu::GroupedGatedLinear(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::GroupedLinear(Stream& stream, const GroupedLinearArgs& args) {
  return cpu::GroupedLinear(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::RopeTable(Stream& stream, const RopeTableArgs& args) {
  return cpu::RopeTable(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::Rope(Stream& stream, const RopeArgs& args) {
  return cpu::Rope(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::SiluMul(Stream& stream, const SiluMulArgs& args) {
  return cpu::SiluMul(CpuStream::Of(stream), args);
}

absl::Status CpuModelOps::Sampling(Stream& stream, const SamplingArgs& args) {
  return cpu::Sampling(CpuStream::Of(stream), args);
}

}  // namespace retroinfer
