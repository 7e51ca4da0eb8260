// The CPU backend's selection of pages (contract in gpu_worker/ops/index/page_select.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/page_select.h"

namespace retroinfer::cpu {

absl::Status PageSelect(CpuStream& stream, const PageSelectArgs& args);
absl::Status CandidateRest(CpuStream& stream, const PageSelectArgs& args);

}  // namespace retroinfer::cpu
