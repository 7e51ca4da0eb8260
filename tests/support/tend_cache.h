// What the engine does about a block cache in a round, for tests without an engine.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/wave_buffer/block_cache.h"

namespace retroinfer::test_support {

inline absl::Status Tend(BlockCache& cache) {
  RETURN_IF_ERROR(cache.Settle());
  return cache.Tend();
}

// A cache has room for what the next step brings when it is tended before.
inline absl::Status BeginTendedStep(BlockCache& cache) {
  RETURN_IF_ERROR(cache.BeginStep());
  return Tend(cache);
}

}  // namespace retroinfer::test_support
