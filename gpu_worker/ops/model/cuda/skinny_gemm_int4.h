// What skinny_gemm.h is, for weights in 4 bits.
//
// Batch-invariant: the order in which the products of an element are added depends on in_features
// and the groups of the weight alone.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu_worker/ops/model/cuda/int4_weight.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"

namespace retroinfer::cuda {

// As PrepareSkinnyGemm.
cudaError_t PrepareSkinnyGemmInt4();

// `launch`: all but weight, padded_in and scales.
cudaError_t LaunchSkinnyGemmInt4(const SkinnyGemmLaunch& launch, const Int4Weight& weight,
                                 cudaStream_t stream);

}  // namespace retroinfer::cuda
