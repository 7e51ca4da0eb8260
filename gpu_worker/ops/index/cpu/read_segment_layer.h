// The CPU backend's reading of a segment (contract in gpu_worker/ops/index/read_segment_layer.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/read_segment_layer.h"

namespace retroinfer::cpu {

absl::Status ReadSegmentLayer(CpuStream& stream, const ReadSegmentLayerArgs& args);

}  // namespace retroinfer::cpu
