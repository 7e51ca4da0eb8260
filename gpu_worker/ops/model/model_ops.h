// What a transformer computes besides attention: embedding, norms, linear layers, RoPE, sampling.
//
// All calls as ops.h says.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/model/arrange_codes.h"
#include "gpu_worker/ops/model/embedding.h"
#include "gpu_worker/ops/model/gated_linear.h"
#include "gpu_worker/ops/model/grouped_linear.h"
#include "gpu_worker/ops/model/linear.h"
#include "gpu_worker/ops/model/rms_norm.h"
#include "gpu_worker/ops/model/rope.h"
#include "gpu_worker/ops/model/route_experts.h"
#include "gpu_worker/ops/model/sampling.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer {

class ModelOps {
 public:
  virtual ~ModelOps() = default;

  // Element type of hidden states, queries and attention outputs.
  virtual DType activation_dtype() const = 0;
  // Copies weights into the backend's own form. May take long; not for a decode step.
  virtual absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(
      const LinearWeights& weights) = 0;
  virtual absl::Status ArrangeCodes(Stream& stream, const ArrangeCodesArgs& args) = 0;
  virtual absl::Status Embedding(Stream& stream, const EmbeddingArgs& args) = 0;
  virtual absl::Status RmsNorm(Stream& stream, const RmsNormArgs& args) = 0;
  virtual absl::Status Linear(Stream& stream, const LinearArgs& args) = 0;
  virtual absl::Status GatedLinear(Stream& stream, const GatedLinearArgs& args) = 0;
  virtual absl::Status RouteExperts(Stream& stream, const RouteExpertsArgs& args) = 0;
  virtual absl::Status GroupedGatedLinear(Stream& stream, const GroupedGatedLinearArgs& args) = 0;
  virtual absl::Status GroupedLinear(Stream& stream, const GroupedLinearArgs& args) = 0;
  virtual absl::Status RopeTable(Stream& stream, const RopeTableArgs& args) = 0;
  virtual absl::Status Rope(Stream& stream, const RopeArgs& args) = 0;
  virtual absl::Status SiluMul(Stream& stream, const SiluMulArgs& args) = 0;
  virtual absl::Status Sampling(Stream& stream, const SamplingArgs& args) = 0;
};

}  // namespace retroinfer
