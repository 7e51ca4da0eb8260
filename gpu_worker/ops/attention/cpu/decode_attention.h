#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/attention/cpu/decode_attention_scratch.h"
#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer::cpu {

absl::Status DecodeAttention(CpuStream& stream, const DecodeAttentionArgs& args);

}  // namespace retroinfer::cpu
