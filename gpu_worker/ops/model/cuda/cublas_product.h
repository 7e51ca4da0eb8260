// Products of many rows by cuBLASLt: one algorithm for each shape of weight, whatever the number of
// rows, so that rows do not depend on each other.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/dtype.h"
#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/model/cuda/cublas_lt.h"

namespace retroinfer::cuda {

// What an algorithm is chosen by.
struct ProductShape {
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t in_stride = 0;
  int64_t out_stride = 0;
  DType out_dtype = DType::kBf16;
  bool has_bias = false;
  bool accumulate = false;
  // Weight and activations are e4m3 with a scale for each output feature and for each row; else
  // bf16. Compute capability 9.0 alone, and 16 must divide both numbers of features.
  bool fp8 = false;

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductOperands {
  const void* weight = nullptr;  // [out_features][in_features]
  const void* in = nullptr;      // [rows] rows, in_stride apart
  void* out = nullptr;           // [rows] rows, out_stride apart
  const void* bias = nullptr;    // [out_features] of out_dtype
  // Of fp8, [out_features] and [rows].
  const float* weight_scales = nullptr;
  const float* in_scales = nullptr;
};

// OK for success; RESOURCE_EXHAUSTED or INTERNAL with `what` failed.
absl::Status CublasStatus(const CublasLt& lt, cublasStatus_t code, std::string_view what);

// The heuristics' first choice that does not split the inner dimension; nothing where there is
// none. `scales` is any scales of fp8: how pointers are aligned decides, too.
absl::StatusOr<std::optional<cublasLtMatmulAlgo_t>> ChooseAlgorithm(const CublasLt& lt,
                                                                    cublasLtHandle_t handle,
                                                                    const ProductShape& shape,
                                                                    const float* scales,
                                                                    size_t workspace_bytes);

// Enqueues the product of `rows` rows.
absl::Status EnqueueProduct(const CublasLt& lt, cublasLtHandle_t handle, const ProductShape& shape,
                            const cublasLtMatmulAlgo_t& algorithm, int64_t rows,
                            const ProductOperands& operands, DeviceSpan<std::byte> workspace,
                            cudaStream_t stream);

}  // namespace retroinfer::cuda
