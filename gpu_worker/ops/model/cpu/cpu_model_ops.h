// The model operations of the CPU backend: a thin dispatch to one function each.
#pragma once

#include <memory>

#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/compute_precision.h"
#include "gpu_worker/ops/model/model_ops.h"

namespace retroinfer {

class CpuModelOps final : public ModelOps {
 public:
  // `device` gives the memory for prepared weights; it must outlive them.
  CpuModelOps(CpuDevice& device, ComputePrecision precision)
      : device_(device), precision_(precision) {}

  DType activation_dtype() const override { return DType::kF32; }
  absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(
      const LinearWeights& weights) override;
  absl::Status ArrangeCodes(Stream& stream, const ArrangeCodesArgs& args) override;
  absl::Status Embedding(Stream& stream, const EmbeddingArgs& args) override;
  absl::Status RmsNorm(Stream& stream, const RmsNormArgs& args) override;
  absl::Status Linear(Stream& stream, const LinearArgs& args) override;
  absl::Status GatedLinear(Stream& stream, const GatedLinearArgs& args) override;
  absl::Status RouteExperts(Stream& stream, const RouteExpertsArgs& args) override;
  absl::Status GroupedGatedLinear(Stream& stream, const GroupedGatedLinearArgs& args) override;
  absl::Status GroupedLinear(Stream& stream, const GroupedLinearArgs& args) override;
  absl::Status RopeTable(Stream& stream, const RopeTableArgs& args) override;
  absl::Status Rope(Stream& stream, const RopeArgs& args) override;
  absl::Status SiluMul(Stream& stream, const SiluMulArgs& args) override;
  absl::Status Sampling(Stream& stream, const SamplingArgs& args) override;

 private:
  CpuDevice& device_;
  const ComputePrecision precision_;
};

}  // namespace retroinfer
