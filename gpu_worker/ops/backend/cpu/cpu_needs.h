// BackendNeeds of CpuOps.
#pragma once

#include "gpu_worker/ops/attention/cpu/decode_attention_scratch.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/index/cpu/cluster_keys_scratch.h"

namespace retroinfer {

inline constexpr BackendNeeds kCpuNeeds = {
    .activation_dtype = DType::kF32,
    .uses_transient_slots = true,
    .index_of_bf16 = DType::kBf16,
    .prefill_attention_scratch = [](int64_t, int64_t, int64_t) { return size_t{0}; },
    .decode_attention_scratch = &cpu::DecodeAttentionScratchBytes,
    .shared_page_attention_scratch = [](int32_t, int32_t, int32_t) { return size_t{0}; },
    .estimate_scratch = [](int32_t, int32_t, int32_t, int64_t) { return size_t{0}; },
    .cluster_keys_scratch = &cpu::ClusterKeysScratchBytes,
    .has_weight_form = [](const WeightForm&) { return true; },
    .weight_bytes = [](const WeightForm&, int64_t in,
                       int64_t out) { return kBf16Weights.Bytes(out, in); },
    .weight_scratch = [](const WeightForm&, int64_t, int64_t) { return size_t{0}; }};

}  // namespace retroinfer
