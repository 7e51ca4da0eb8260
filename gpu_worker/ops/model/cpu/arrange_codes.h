#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/arrange_codes.h"

namespace retroinfer::cpu {

absl::Status ArrangeCodes(CpuStream& stream, const ArrangeCodesArgs& args);

}  // namespace retroinfer::cpu
