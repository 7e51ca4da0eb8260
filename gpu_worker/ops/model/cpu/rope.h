#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/rope.h"

namespace retroinfer::cpu {

absl::Status RopeTable(CpuStream& stream, const RopeTableArgs& args);
absl::Status Rope(CpuStream& stream, const RopeArgs& args);

}  // namespace retroinfer::cpu
