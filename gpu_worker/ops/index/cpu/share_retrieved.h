// Of the CPU backend.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/share_retrieved.h"

namespace retroinfer::cpu {

absl::Status ShareRetrieved(CpuStream& stream, const ShareRetrievedArgs& args);

}  // namespace retroinfer::cpu
