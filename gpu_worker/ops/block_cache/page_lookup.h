// Finds the pages of retrieved clusters, or those that were chosen of them, in slots of the block
// cache, admits missing pages into free slots, and keeps the access log.
//
// A page that is not in a slot is admitted into a free slot, if there is one and the log has room.
// The execution buffer says where its bytes are: in a slot, in a transient slot that holds until
// the next call, or in the arena itself. A backend chooses: attention may read the arena over the
// bus while it computes, and what was admitted is copied behind it.
//
// Pages that are absent (absent_pages_view.h) are neither found nor admitted: they count as
// nothing.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/block_cache/block_cache_view.h"
#include "gpu_worker/ops/index/page_select.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

// A look-up is two calls. After PageLookup the execution buffer can be attended. AdmitPages then
// gives slots to pages that were missed: when it is done, and not before, they lie in them, table
// and log name them, and the counters have the look-up. It is called once after each PageLookup,
// behind it on the same or another stream, before the next call of any operation on the cache;
// attention over the execution buffer may run at the same time, unless AdmitPages is given it.
struct PageLookupArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;  // device
  MetaPoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const MetaIndexView> indexes;  // [batch]
  int32_t batch = 0;
  int32_t num_kv_heads = 0;
  DeviceSpan<const int32_t> retrieved;      // [batch, kv_heads, max_retrieved] cluster numbers
  DeviceSpan<const int32_t> num_retrieved;  // [batch, kv_heads]
  int64_t max_retrieved = 0;
  // Chosen pages, which are looked up instead of the clusters above; empty spans: whole clusters.
  DeviceSpan<const ChosenPage> chosen;   // [batch, kv_heads, max_chosen]
  DeviceSpan<const int32_t> num_chosen;  // [batch, kv_heads]
  int64_t max_chosen = 0;
  // Execution buffer. REQUIRES: max_pages suffices for every cluster, or page, chosen.
  int64_t max_pages = 0;
  DeviceSpan<PageRef> pages;      // [batch, kv_heads, max_pages]
  DeviceSpan<int32_t> num_pages;  // [batch, kv_heads]
};

struct AdmitPagesArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;  // device
  // The execution buffer of the look-up: references to pages that are admitted become references
  // to their slots, for attention behind this call. So a page that several rows have missed is
  // read from the arena once. Empty: references stay as they are.
  DeviceSpan<PageRef> pages;
};

}  // namespace retroinfer
