#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/rms_norm.h"

namespace retroinfer::cpu {

absl::Status RmsNorm(CpuStream& stream, const RmsNormArgs& args);

}  // namespace retroinfer::cpu
