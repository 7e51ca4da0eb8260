#include "kv_store_service/persistence/disk_budget.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

DiskBudget::DiskBudget(SegmentStorage* storage, DiskLimits limits,
                       std::function<bool(const SegmentName&)> is_referenced)
    : storage_(*storage), limits_(std::move(limits)), is_referenced_(std::move(is_referenced)) {}

absl::Status DiskBudget::RemoveExpiredContexts(absl::Time now) {
  for (const ContextRecord& context : storage_.ListContexts()) {
    if (context.expires > now) continue;
    RETURN_IF_ERROR(storage_.DeleteContext(context.salt_hash, context.context_name));
    absl::MutexLock lock(&mutex_);
    ++stats_.expired_contexts_total;
  }
  return absl::OkStatus();
}

absl::Status DiskBudget::PutContext(const ContextRecord& context) {
  absl::MutexLock eviction_lock(&eviction_mutex_);
  return storage_.PutContext(context);
}

bool DiskBudget::FitsEasily(uint64_t physical_bytes, uint64_t incoming_bytes) const {
  const double sum = static_cast<double>(physical_bytes) + static_cast<double>(incoming_bytes);
  return limits_.tenant_quota_bytes == 0 && limits_.quotas.empty() &&
         limits_.idle_ttl == absl::InfiniteDuration() &&
         (limits_.cap_bytes == 0 ||
          sum <= limits_.high_watermark * static_cast<double>(limits_.cap_bytes));
}

absl::Status DiskBudget::MakeRoom(uint64_t incoming_bytes, const Hash256& tenant, absl::Time now) {
  absl::MutexLock eviction_lock(&eviction_mutex_);
  return MakeRoomBeside(held_bytes_, incoming_bytes, tenant, now);
}

absl::Status DiskBudget::Hold(uint64_t bytes, const Hash256& tenant, absl::Time now,
                              uint64_t* held) {
  absl::MutexLock eviction_lock(&eviction_mutex_);
  // All of the file is to become the tenant's.
  RETURN_IF_ERROR(MakeRoomBeside(held_bytes_ - *held, *held + bytes, tenant, now));
  *held += bytes;
  held_bytes_ += bytes;
  return absl::OkStatus();
}

void DiskBudget::Drop(uint64_t bytes, uint64_t* held) {
  *held -= bytes;
  held_bytes_ -= bytes;
}

absl::Status DiskBudget::MakeRoomBeside(uint64_t others, uint64_t incoming_bytes,
                                        const Hash256& tenant, absl::Time now) {
  RETURN_IF_ERROR(RemoveExpiredContexts(now));
  StorageStats stats = storage_.Stats();
  stats.physical_bytes += others;
  const double high = limits_.high_watermark * static_cast<double>(limits_.cap_bytes);
  if (limits_.cap_bytes > 0 && stats.quarantined + stats.damaged_stores_total > 0 &&
      static_cast<double>(stats.physical_bytes) + static_cast<double>(incoming_bytes) > high) {
    RETURN_IF_ERROR(storage_.PurgeQuarantine().status());
    stats = storage_.Stats();
    stats.physical_bytes += others;
  }
  if (FitsEasily(stats.physical_bytes, incoming_bytes)) return absl::OkStatus();

  absl::flat_hash_set<SegmentName> pinned;
  for (const ContextRecord& context : storage_.ListContexts()) {
    if (context.pinned) pinned.insert(context.segments.begin(), context.segments.end());
  }
  std::vector<EvictionCandidate> candidates;
  for (const SegmentRecord& record : storage_.List()) {
    candidates.push_back(
        {record.name, record.salt_hash, record.image_bytes, record.token_begin, record.last_use,
         pinned.contains(record.name) || (is_referenced_ && is_referenced_(record.name))});
  }
  const EvictionPlan plan =
      PlanEviction(candidates, stats.physical_bytes, incoming_bytes, tenant, limits_, now);
  if (!plan.fits) {
    absl::MutexLock lock(&mutex_);
    ++stats_.refused_total;
    return absl::ResourceExhaustedError(absl::StrCat(
        "durable segments: ", incoming_bytes, " bytes do not fit: ", stats.physical_bytes,
        " of at most ", limits_.cap_bytes,
        " bytes are used on the disk (quota of a tenant: ", limits_.tenant_quota_bytes, "), ",
        plan.freed_bytes, " could be evicted; unpin contexts or raise the limit"));
  }
  if (plan.victims.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(storage_.Delete(plan.victims).status());
  absl::MutexLock lock(&mutex_);
  stats_.expired_total += plan.expired;
  stats_.over_quota_total += plan.over_quota;
  stats_.over_cap_total += plan.over_cap;
  stats_.evicted_bytes_total += plan.freed_bytes;
  return absl::OkStatus();
}

DiskBudget::Stats DiskBudget::stats() {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace retroinfer::kvstore
