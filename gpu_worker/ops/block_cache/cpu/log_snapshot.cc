#include "gpu_worker/ops/block_cache/cpu/log_snapshot.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cpu/access_log.h"

namespace retroinfer::cpu {
namespace {

void Snapshot(const LogSnapshotArgs& args) {
  const BlockCacheView& cache = args.cache;
  AccessLog log(cache, args.step);
  SlotId slot = *args.next_slot;
  for (; slot < cache.slot_page.size(); ++slot) {
    const PageId page = cache.slot_page.device_data()[slot];
    if (page == kNoPage) continue;
    if (log.room() == 0) break;
    log.Append(LogKind::kAdmit, page, slot);
  }
  log.Publish();
  *args.next_slot = slot;
}

}  // namespace

absl::Status LogSnapshot(CpuStream& stream, const LogSnapshotArgs& args) {
  RETURN_IF_ERROR(CheckLogSnapshot(args));
  return stream.Launch([args](ThreadPool&) { Snapshot(args); });
}

}  // namespace retroinfer::cpu
