// The CPU backend's eviction of pages (contract in gpu_worker/ops/block_cache/apply_evictions.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache/apply_evictions.h"

namespace retroinfer::cpu {

absl::Status ApplyEvictions(CpuStream& stream, const ApplyEvictionsArgs& args);

}  // namespace retroinfer::cpu
