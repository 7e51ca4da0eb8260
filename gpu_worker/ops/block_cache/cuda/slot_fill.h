// The CUDA backend's filling of slots with new pages (contract in
// gpu_worker/ops/block_cache/slot_fill.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/block_cache/slot_fill.h"

namespace retroinfer::cuda {

absl::Status TakeSlots(CudaStream& stream, const TakeSlotsArgs& args);
absl::Status AdmitSlots(CudaStream& stream, const AdmitSlotsArgs& args);

}  // namespace retroinfer::cuda
