// The CPU backend's look-up of pages (contract in gpu_worker/ops/block_cache/page_lookup.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache/page_lookup.h"

namespace retroinfer::cpu {

absl::Status PageLookup(CpuStream& stream, const PageLookupArgs& args);

}  // namespace retroinfer::cpu
