// The CPU backend's snapshot of the block cache (contract in
// gpu_worker/ops/block_cache/log_snapshot.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache/log_snapshot.h"

namespace retroinfer::cpu {

absl::Status LogSnapshot(CpuStream& stream, const LogSnapshotArgs& args);

}  // namespace retroinfer::cpu
