#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer::cpu {

size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim);
absl::Status DecodeAttention(CpuStream& stream, const DecodeAttentionArgs& args);

}  // namespace retroinfer::cpu
