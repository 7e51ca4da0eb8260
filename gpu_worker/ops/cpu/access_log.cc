#include "gpu_worker/ops/cpu/access_log.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"

namespace retroinfer::cpu {

absl::Status ValidateCache(const BlockCacheView& cache, const char* op) {
  const size_t num_slots = cache.slot_page.size();
  RETURN_IF_ERROR(CheckArg(cache.slots.size() >= num_slots * kPageBytes &&
                               cache.slot_stamp.size() == num_slots &&
                               cache.free_slots.size() == num_slots && cache.num_free != nullptr,
                           op, "needs slots, stamps and free list of one size"));
  RETURN_IF_ERROR(CheckArg(cache.arena.size() >= cache.page_slot.size() * kPageBytes, op,
                           "needs an arena page for each place of the page table"));
  return CheckArg(!cache.log.empty() && (cache.log.size() & (cache.log.size() - 1)) == 0 &&
                      cache.log_head != nullptr && cache.log_tail != nullptr,
                  op, "needs an access log whose capacity is a power of two");
}

}  // namespace retroinfer::cpu
