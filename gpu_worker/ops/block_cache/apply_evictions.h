// What the store asked to give up leaves the block cache.
#pragma once

#include "gpu_worker/ops/block_cache/block_cache_view.h"

namespace retroinfer {

// Applies eviction requests between two steps: a slot whose page or stamp changed since is kept.
struct ApplyEvictionsArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;
  StepStamp step = 0;
  DeviceSpan<const EvictionRequest> requests;  // copied out of the ring; hostile until checked.
                                               // REQUIRES: the log has room for as many entries
};

}  // namespace retroinfer
