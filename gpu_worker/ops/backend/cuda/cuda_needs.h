// BackendNeeds of CudaOps, but for the workspaces of its libraries, which have a share of the GPU's
// memory that is not planned (PlannableGpuBytes). Free of CUDA.
#pragma once

#include "gpu_worker/ops/attention/cuda/decode_attention_scratch.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/index/cuda/cluster_keys_scratch.h"
#include "gpu_worker/ops/index/cuda/estimate_scratch.h"
#include "gpu_worker/ops/model/cuda/fp8_tiles.h"

namespace retroinfer {

inline constexpr BackendNeeds kCudaNeeds = {
    .activation_dtype = DType::kBf16,
    .uses_transient_slots = false,
    .index_of_bf16 = DType::kBf16,
    .decode_attention_scratch = &cuda::DecodeAttentionScratchBytes,
    .estimate_scratch = &cuda::EstimateScratchBytes,
    .cluster_keys_scratch = &cuda::ClusterKeysScratchBytes,
    .fp8_weight = [](int64_t in, int64_t out) { return static_cast<size_t>(in * out); },
    .fp8_scratch = &cuda::UnpackedTileBytes};

}  // namespace retroinfer
