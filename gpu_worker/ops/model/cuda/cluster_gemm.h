// What skinny_gemm.h is, for 9 to 64 rows on GPUs of compute capability 9.0 (more rows are taken
// 64 at a time): the same results, to the bit, at close to the speed at which the weight is read.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu_worker/ops/model/cuda/grouped_weight.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"

namespace retroinfer::cuda {

// Readies the kernels where the GPU takes them. Once, before the first launch.
void PrepareClusterGemm();

// Whether LaunchClusterGemm takes a product. `gemm`: all but weight, padded_in and scales, which
// `weight` has.
bool TakesClusterGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight);

// REQUIRES: TakesClusterGemm(gemm, weight).
cudaError_t LaunchClusterGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                              cudaStream_t stream);

// Of weights in bf16, in 8 and in 4 bits; Prepare returns whether the GPU takes the kernels.
bool PrepareClusterGemmBf16();
bool PrepareClusterGemmFp8();
bool PrepareClusterGemmInt4();
cudaError_t LaunchClusterGemmBf16(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                                  cudaStream_t stream);
cudaError_t LaunchClusterGemmFp8(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                                 cudaStream_t stream);
cudaError_t LaunchClusterGemmInt4(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                                  cudaStream_t stream);

}  // namespace retroinfer::cuda
