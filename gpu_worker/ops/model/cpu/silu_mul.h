#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer::cpu {

absl::Status SiluMul(CpuStream& stream, const SiluMulArgs& args);

}  // namespace retroinfer::cpu
