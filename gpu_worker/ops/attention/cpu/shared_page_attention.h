// Of the CPU backend, which needs no scratch.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/attention/shared_page_attention.h"

namespace retroinfer::cpu {

absl::Status SharedPageAttention(CpuStream& stream, const SharedPageAttentionArgs& args);

}  // namespace retroinfer::cpu
