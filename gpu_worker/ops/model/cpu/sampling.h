#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer::cpu {

absl::Status Sampling(CpuStream& stream, const SamplingArgs& args);

}  // namespace retroinfer::cpu
