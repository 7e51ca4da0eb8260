// The CPU backend's sum over ranks (contract in gpu_worker/ops/collective/all_reduce.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/collective/all_reduce.h"
#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer::cpu {

// `ranks`: null for one rank.
absl::Status AllReduce(CpuStream& stream, RankMemory* ranks, const AllReduceArgs& args);

}  // namespace retroinfer::cpu
