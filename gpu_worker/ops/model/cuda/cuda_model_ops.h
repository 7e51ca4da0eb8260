// The model operations of the CUDA backend: a thin dispatch to one function each.
#pragma once

#include <memory>

#include "gpu_worker/ops/model/model_ops.h"

namespace retroinfer {

namespace cuda {
class LinearContext;
}  // namespace cuda

class CudaModelOps final : public ModelOps {
 public:
  // `linear` must outlive this.
  explicit CudaModelOps(cuda::LinearContext& linear) : linear_(linear) {}

  DType activation_dtype() const override { return DType::kBf16; }
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
  cuda::LinearContext& linear_;
};

}  // namespace retroinfer
