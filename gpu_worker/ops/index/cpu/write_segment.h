// The CPU backend's writing of a segment (contract in gpu_worker/ops/index/write_segment.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/write_segment.h"

namespace retroinfer::cpu {

absl::Status WriteSegment(CpuStream& stream, const WriteSegmentArgs& args);

}  // namespace retroinfer::cpu
