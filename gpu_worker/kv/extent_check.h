// Whether an extent that another process names can be what it is said to be.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/kv/extent.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer {

// Returns: INTERNAL if the extent is not inside an arena of `arena_pages`.
absl::Status CheckInside(const Extent& extent, uint32_t arena_pages);

// `geometry` is the arena's.
//
// Returns: INTERNAL if the extent is too short for the KV that it is said to hold, a block or a
//          segment: kernels read all of it.
absl::Status CheckHolds(const Extent& extent, const KvGeometry& geometry);

// `geometry` is the arena's.
//
// Returns: INTERNAL if no segment of `num_tokens` tokens can be built in the extent.
absl::Status CheckTakes(const Extent& extent, uint32_t num_tokens, const KvGeometry& geometry);

}  // namespace retroinfer
