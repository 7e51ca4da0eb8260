#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/attention/prefill_attention.h"
#include "gpu_worker/ops/cpu/compute_precision.h"

namespace retroinfer::cpu {

absl::Status PrefillAttention(CpuStream& stream, const PrefillAttentionArgs& args,
                              ComputePrecision precision);

}  // namespace retroinfer::cpu
