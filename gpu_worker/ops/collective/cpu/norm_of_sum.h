// The CPU backend's norms of a sum over ranks (contract in
// gpu_worker/ops/collective/norm_of_sum.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/collective/norm_of_sum.h"
#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer::cpu {

// `ranks`: null for one rank.
absl::Status NormOfSum(CpuStream& stream, RankMemory* ranks, const NormOfSumArgs& args);

}  // namespace retroinfer::cpu
