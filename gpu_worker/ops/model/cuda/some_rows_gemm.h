// What skinny_gemm.h is, for 17 to 64 rows on GPUs of compute capability 9.0 (more rows are taken
// 64 at a time): the same results, to the bit, closer to the speed at which the weight is read.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu_worker/ops/model/cuda/grouped_weight.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"

namespace retroinfer::cuda {

// Readies the kernels where the GPU takes them. Once, before the first launch.
void PrepareSomeRowsGemm();

// Whether LaunchSomeRowsGemm takes a product, and sooner than the kernels for few rows. `gemm`: all
// but weight, padded_in and scales, which `weight` has.
bool TakesSomeRowsGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight);

// REQUIRES: TakesSomeRowsGemm(gemm, weight).
cudaError_t LaunchSomeRowsGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                               cudaStream_t stream);

// The kernels of a form.
struct SomeRowsKernels {
  // Whether the GPU takes them; readies them.
  bool (*prepare)();
  // Whether they take a product of 17 rows or more sooner than the kernels for few rows.
  bool (*takes)(const SkinnyGemmLaunch& gemm);
  cudaError_t (*launch)(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                        cudaStream_t stream);
};
extern const SomeRowsKernels kSomeRowsBf16;
extern const SomeRowsKernels kSomeRowsFp8Features;
extern const SomeRowsKernels kSomeRowsFp8Blocks;
extern const SomeRowsKernels kSomeRowsInt4Steps;

}  // namespace retroinfer::cuda
