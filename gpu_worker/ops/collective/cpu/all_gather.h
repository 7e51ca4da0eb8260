// The CPU backend's gathering of columns (contract in gpu_worker/ops/collective/all_gather.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/collective/all_gather.h"
#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer::cpu {

// `ranks`: null for one rank.
absl::Status AllGather(CpuStream& stream, RankMemory* ranks, const AllGatherArgs& args);

}  // namespace retroinfer::cpu
