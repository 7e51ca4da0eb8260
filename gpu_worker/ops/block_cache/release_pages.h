// Pages whose segment has ended leave the block cache.
#pragma once

#include "gpu_worker/ops/block_cache/block_cache_view.h"

namespace retroinfer {

// Frees the slots of pages [first_page, first_page + num_pages): their segment ended. Pages are
// examined in order until the log is full; *next_page (device) receives the first one not examined.
struct ReleasePagesArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;
  StepStamp step = 0;
  PageId first_page = 0;
  uint32_t num_pages = 0;
  PageId* next_page = nullptr;
};

}  // namespace retroinfer
