// A matrix of weights as the CUDA backend multiplies it, with few rows or with many: what is the
// same for each form in which weights are kept. A form is a class.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/cuda/grouped_weight.h"
#include "gpu_worker/ops/model/cuda/linear_context.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/gated_linear.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer::cuda {

// Threads: immutable after preparation.
// Owns:    its weight and bias.
class CudaLinear : public PreparedLinear {
 public:
  int64_t in_features() const final { return in_features_; }
  int64_t out_features() const final { return out_features_; }
  int64_t num_parts() const final { return num_parts_; }
  bool has_bias() const { return bias_.size_bytes() > 0; }
  // [out_features]; null if there is none.
  const float* BiasF32() const {
    return has_bias() ? bias_f32_.as<const float>().device_data() : nullptr;
  }

  void set_num_parts(int64_t num_parts) { num_parts_ = num_parts; }
  // Enqueues the copy of a bias [1, out_features].
  absl::Status AddBias(LinearContext& context, CudaStream& stream, const MatrixView& bias);

  // Linear of any rows, at the speed of reading the weight once if they are few.
  //
  // REQUIRES: args.in.rows > 0.
  absl::Status Few(CudaStream& stream, const LinearArgs& args) const;
  // The same of gated_linear. REQUIRES: FusesGatedLinear(args), too.
  absl::Status FewGated(CudaStream& stream, const GatedLinearArgs& args) const;
  // Linear of many rows, whose results do not depend on their number.
  //
  // REQUIRES: as Few; rows of `in` and `out` are aligned to 16 bytes.
  // Returns: false if cuBLASLt cannot; nothing is done then.
  virtual absl::StatusOr<bool> Many(LinearContext& context, CudaStream& stream,
                                    const LinearArgs& args) const = 0;

  // As the kernels of grouped_linear take it.
  virtual GroupedWeight Grouped() const = 0;

 protected:
  // Output features that are multiplied together, and their rows of the weight in bf16.
  struct Features {
    int64_t first = 0;
    int64_t count = 0;
    const void* weight = nullptr;
  };

  CudaLinear(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}

  static absl::StatusOr<DeviceBuffer> Allocate(LinearContext& context, int64_t bytes) {
    return context.device().Allocate(static_cast<size_t>(bytes), MemoryPurpose::kWeights);
  }

  // Adds the weight to `launch`, which has all else, and launches the kernel of its form.
  virtual absl::Status LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const = 0;

  // Of a product with so many of the features.
  ProductShape ShapeOf(const LinearArgs& args, int64_t features) const;
  // Of cuBLASLt's epilogue, without those of the first features, `skipped` bytes.
  const std::byte* BiasOf(const ProductShape& shape, size_t skipped) const;
  // Multiplies bf16 by bf16. `shape` is that of the features.
  absl::Status RunCublas(LinearContext& context, const ProductShape& shape,
                         const cublasLtMatmulAlgo_t& algorithm, const Features& features,
                         CudaStream& stream, const LinearArgs& args) const;

 private:
  SkinnyGemmLaunch LaunchOf(const MatrixView& in, const MatrixView& out) const;
  // The kernel of the form for few rows, or where there is one that of 17 to 64.
  absl::Status LaunchFewOrSome(const SkinnyGemmLaunch& launch, CudaStream& stream) const;

  const int64_t in_features_;
  const int64_t out_features_;
  int64_t num_parts_ = 1;
  DeviceBuffer bias_;      // [out_features] bf16 or nothing
  DeviceBuffer bias_f32_;  // the same values
};

}  // namespace retroinfer::cuda
