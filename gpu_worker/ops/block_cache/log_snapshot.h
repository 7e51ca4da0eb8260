// The block cache as it stands, written to the access log.
#pragma once

#include "gpu_worker/ops/block_cache/block_cache_view.h"

namespace retroinfer {

// Writes kAdmit entries for the resident pages of slots [*next_slot, num_slots) until the log is
// full, and advances *next_slot (device): the snapshot after a kReset, for a store that has
// restarted.
struct LogSnapshotArgs {
  BlockCacheView cache;
  StepStamp step = 0;
  SlotId* next_slot = nullptr;
};

}  // namespace retroinfer
