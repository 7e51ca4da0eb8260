// The CPU backend's release of a segment's pages (contract in
// gpu_worker/ops/block_cache/release_pages.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache/release_pages.h"

namespace retroinfer::cpu {

absl::Status ReleasePages(CpuStream& stream, const ReleasePagesArgs& args);

}  // namespace retroinfer::cpu
