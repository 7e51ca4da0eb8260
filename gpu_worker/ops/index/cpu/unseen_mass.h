// The CPU backend's unseen mass (contract in gpu_worker/ops/index/unseen_mass.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/unseen_mass.h"

namespace retroinfer::cpu {

absl::Status UnseenMass(CpuStream& stream, const UnseenMassArgs& args);

}  // namespace retroinfer::cpu
