// The CPU backend's loading of a segment's index (contract in
// gpu_worker/ops/index/load_segment_index.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/load_segment_index.h"

namespace retroinfer::cpu {

absl::Status LoadSegmentIndex(CpuStream& stream, const LoadSegmentIndexArgs& args);

}  // namespace retroinfer::cpu
