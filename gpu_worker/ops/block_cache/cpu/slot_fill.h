// The CPU backend's filling of slots with new pages (contract in
// gpu_worker/ops/block_cache/slot_fill.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache/slot_fill.h"

namespace retroinfer::cpu {

absl::Status TakeSlots(CpuStream& stream, const TakeSlotsArgs& args);
absl::Status AdmitSlots(CpuStream& stream, const AdmitSlotsArgs& args);

}  // namespace retroinfer::cpu
