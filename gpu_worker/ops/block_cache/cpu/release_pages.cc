#include "gpu_worker/ops/block_cache/cpu/release_pages.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cpu/access_log.h"

namespace retroinfer::cpu {
namespace {

void Release(const ReleasePagesArgs& args) {
  const BlockCacheView& cache = args.cache;
  AccessLog log(cache, args.step);
  const PageId end = args.first_page + args.num_pages;
  PageId page = args.first_page;
  for (; page < end; ++page) {
    const SlotId slot = cache.page_slot.device_data()[page];
    if (slot == kNoSlot) continue;
    if (log.room() == 0) break;
    FreeSlot(cache, page, slot);
    log.Append(LogKind::kRelease, page, slot);
    ++args.counters->releases;
  }
  log.Publish();
  *args.next_page = page;
}

}  // namespace

absl::Status ReleasePages(CpuStream& stream, const ReleasePagesArgs& args) {
  RETURN_IF_ERROR(CheckReleasePages(args));
  return stream.Launch([args](ThreadPool&) { Release(args); });
}

}  // namespace retroinfer::cpu
