// What the kernels of grouped_linear are launched with. Free of CUDA but for its types.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/model/cuda/grouped_weight.h"
#include "gpu_worker/ops/model/route_experts.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer::cuda {

struct GroupedLaunch {
  GroupedWeight weight;
  int64_t in_features = 0;                              // a multiple of 8
  int64_t features = 0;                                 // of a part
  const float* bias = nullptr;                          // [parts * features] or null
  GatedActivation activation = GatedActivation::kSilu;  // of a gated product
  const void* in =
      nullptr;  // bf16, rows aligned to 16 bytes: of rows, or for the second product pairs
  int64_t in_stride = 0;
  int64_t rows = 0;
  RoutePlan plan;
  const int32_t* words = nullptr;  // ExpertRoutes::plan
  const float* weights = nullptr;  // [pairs]
  void* out = nullptr;             // bf16
  int64_t out_stride = 0;
  bool accumulate = true;  // of `out` of rows
};

// Allows the kernels the shared memory that they need. Once, before the first launch.
cudaError_t PrepareGrouped();

// Few rows: `out` of pairs; and of rows.
cudaError_t LaunchGroupedGatedFew(const GroupedLaunch& launch, cudaStream_t stream);
cudaError_t LaunchGroupedFew(const GroupedLaunch& launch, cudaStream_t stream);

// Many rows: `out` of pairs.
cudaError_t LaunchGroupedGatedMany(const GroupedLaunch& launch, cudaStream_t stream);
cudaError_t LaunchGroupedMany(const GroupedLaunch& launch, cudaStream_t stream);

// What the launchers above call.
cudaError_t PrepareGroupedFew();
cudaError_t PrepareGroupedMany();

// out[row] += the sum of products[pair] * weights[pair] over the row's pairs, or = with
// !accumulate; bf16, features a multiple of 8, rows aligned to 16 bytes.
cudaError_t LaunchAddProducts(const void* products, int64_t products_stride,
                              const GroupedLaunch& launch, cudaStream_t stream);

}  // namespace retroinfer::cuda
