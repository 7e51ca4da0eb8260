// Checks of the arguments of operations on the block cache, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/block_cache/apply_evictions.h"
#include "gpu_worker/ops/block_cache/log_snapshot.h"
#include "gpu_worker/ops/block_cache/page_lookup.h"
#include "gpu_worker/ops/block_cache/release_pages.h"
#include "gpu_worker/ops/index/places_check.h"

namespace retroinfer {

// What all operations on the block cache need.
inline absl::Status CheckBlockCache(const BlockCacheView& cache, const char* op) {
  const size_t num_slots = cache.slot_page.size();
  RETURN_IF_ERROR(CheckArg(cache.slots.size() >= num_slots * cache.page_bytes &&
                               cache.slot_stamp.size() == num_slots &&
                               cache.free_slots.size() == num_slots && cache.num_free != nullptr,
                           op, "needs slots, stamps and free list of one size"));
  RETURN_IF_ERROR(CheckArg(cache.arena.size() >= cache.page_slot.size() * cache.page_bytes, op,
                           "needs an arena page for each place of the page table"));
  RETURN_IF_ERROR(CheckArg(num_slots <= kMaxSlots && cache.control != nullptr, op,
                           "needs at most 2^31 - 1 slots and the step's control words"));
  return CheckArg(!cache.log.empty() && (cache.log.size() & (cache.log.size() - 1)) == 0 &&
                      cache.log_head != nullptr && cache.log_tail != nullptr,
                  op, "needs an access log whose capacity is a power of two");
}

inline absl::Status CheckPageLookup(const PageLookupArgs& args) {
  constexpr char kOp[] = "page_lookup";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  RETURN_IF_ERROR(args.pool.geometry.Validate());
  RETURN_IF_ERROR(CheckPlaces(args.cache.page_slot.size(), args.pool.geometry, kOp));
  RETURN_IF_ERROR(CheckArg(args.counters != nullptr, kOp, "needs counters"));
  const AbsentPagesView& absent = args.cache.absent;
  RETURN_IF_ERROR(CheckArg(
      absent.num_asked == nullptr || (absent.words.size() * 32 >= args.cache.page_slot.size() &&
                                      absent.rows.size() >= static_cast<size_t>(args.batch)),
      kOp, "needs a bit for each arena page, and a mark for each row"));
  RETURN_IF_ERROR(
      CheckArg(args.num_kv_heads == static_cast<int32_t>(args.pool.geometry.num_kv_heads) &&
                   args.layer < args.pool.geometry.num_layers,
               kOp, "needs the KV heads and a layer of the pool"));
  const size_t rows = static_cast<size_t>(args.batch) * static_cast<size_t>(args.num_kv_heads);
  RETURN_IF_ERROR(CheckArg(args.indexes.size() == static_cast<size_t>(args.batch), kOp,
                           "needs an index for each sequence"));
  if (args.num_chosen.empty()) {
    RETURN_IF_ERROR(
        CheckArg(args.retrieved.size() >= rows * static_cast<size_t>(args.max_retrieved) &&
                     args.num_retrieved.size() >= rows,
                 kOp, "needs clusters for every sequence and KV head"));
  } else {
    RETURN_IF_ERROR(CheckArg(
        args.chosen.size() >= rows * static_cast<size_t>(args.max_chosen) &&
            args.num_chosen.size() >= rows && args.max_chosen <= args.max_pages,
        kOp, "needs chosen pages for every sequence and KV head, at most max_pages of each"));
  }
  return CheckArg(args.pages.size() >= rows * static_cast<size_t>(args.max_pages) &&
                      args.num_pages.size() >= rows,
                  kOp, "needs an execution buffer for every sequence and KV head");
}

inline absl::Status CheckAdmitPages(const AdmitPagesArgs& args) {
  constexpr char kOp[] = "admit_pages";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  return CheckArg(args.counters != nullptr, kOp, "needs counters");
}

inline absl::Status CheckApplyEvictions(const ApplyEvictionsArgs& args) {
  constexpr char kOp[] = "apply_evictions";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  return CheckArg(args.counters != nullptr, kOp, "needs counters");
}

inline absl::Status CheckReleasePages(const ReleasePagesArgs& args) {
  constexpr char kOp[] = "release_pages";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  RETURN_IF_ERROR(CheckArg(args.counters != nullptr && args.next_page != nullptr, kOp,
                           "needs counters and next_page"));
  return CheckArg(size_t{args.first_page} + args.num_pages <= args.cache.page_slot.size(), kOp,
                  "needs pages of the arena");
}

inline absl::Status CheckLogSnapshot(const LogSnapshotArgs& args) {
  constexpr char kOp[] = "log_snapshot";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  return CheckArg(args.next_slot != nullptr, kOp, "needs next_slot");
}

}  // namespace retroinfer
