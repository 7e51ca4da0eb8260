#include "gpu_worker/ops/block_cache/cpu/apply_evictions.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cpu/access_log.h"

namespace retroinfer::cpu {
namespace {

void Apply(const ApplyEvictionsArgs& args) {
  const BlockCacheView& cache = args.cache;
  AccessLog log(cache, args.step);
  for (size_t i = 0; i < args.requests.size(); ++i) {
    const EvictionRequest request = args.requests.device_data()[i];
    if (request.slot >= cache.slot_page.size() || request.page >= cache.page_slot.size() ||
        log.room() == 0) {
      ++args.counters->bad_requests;
      continue;
    }
    // Compare and evict: the store has chosen from what it last saw.
    if (cache.slot_page.device_data()[request.slot] != request.page ||
        cache.slot_stamp.device_data()[request.slot] != request.stamp_seen) {
      ++args.counters->evictions_kept;
      log.Append(LogKind::kKeep, request.page, request.slot);
      continue;
    }
    ++args.counters->evictions;
    FreeSlot(cache, request.page, request.slot);
    log.Append(LogKind::kEvict, request.page, request.slot);
  }
  log.Publish();
}

}  // namespace

absl::Status ApplyEvictions(CpuStream& stream, const ApplyEvictionsArgs& args) {
  RETURN_IF_ERROR(CheckApplyEvictions(args));
  return stream.Launch([args](ThreadPool&) { Apply(args); });
}

}  // namespace retroinfer::cpu
