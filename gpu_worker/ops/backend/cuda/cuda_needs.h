// BackendNeeds of CudaOps, but for the workspaces of its libraries, which have a share of the GPU's
// memory that is not planned (PlannableGpuBytes). Free of CUDA.
#pragma once

#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"
#include "gpu_worker/ops/attention/cuda/decode_attention_scratch.h"
#include "gpu_worker/ops/attention/cuda/shared_page_attention_scratch.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/index/cuda/cluster_keys_scratch.h"
#include "gpu_worker/ops/index/cuda/estimate_scratch.h"
#include "gpu_worker/ops/model/cuda/fp8_tiles.h"
#include "gpu_worker/ops/model/cuda/weight_forms.h"

namespace retroinfer {

inline constexpr BackendNeeds kCudaNeeds = {
    .activation_dtype = DType::kBf16,
    .uses_transient_slots = false,
    .index_of_bf16 = DType::kInt8,
    .prefill_attention_scratch = &cuda::PrefillAttentionScratchBytes,
    .decode_attention_scratch = &cuda::DecodeAttentionScratchBytes,
    .shared_page_attention_scratch = &cuda::SharedPageAttentionScratchBytes,
    .estimate_scratch = &cuda::EstimateScratchBytes,
    .cluster_keys_scratch = &cuda::ClusterKeysScratchBytes,
    .has_weight_form = &cuda::HasWeightForm,
    .weight_bytes = &cuda::WeightBytes,
    .weight_scratch = [](const WeightForm&, int64_t in, int64_t out) {
      return cuda::UnpackedTileBytes(in, out);
    }};

}  // namespace retroinfer
