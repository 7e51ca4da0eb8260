// Invariants: `order` has the removable segments from the first to go to the last; a segment
// becomes a victim once; `left` and `tenant_bytes` are what remains after the victims so far.
#include "kv_store_service/persistence/eviction_plan.h"

#include <algorithm>
#include <tuple>

#include "common/log/check.h"

namespace retroinfer::kvstore {
namespace {

class Planner {
 public:
  Planner(std::span<const EvictionCandidate> candidates, uint64_t physical_bytes,
          const DiskLimits& limits)
      : limits_(limits), left_(physical_bytes) {
    for (const EvictionCandidate& candidate : candidates) {
      tenant_bytes_[candidate.salt_hash] += candidate.bytes;
      if (!candidate.is_protected) order_.push_back(&candidate);
    }
    std::sort(order_.begin(), order_.end(),
              [](const EvictionCandidate* a, const EvictionCandidate* b) {
                return std::tie(a->last_use, b->token_begin, a->name) <
                       std::tie(b->last_use, a->token_begin, b->name);
              });
    gone_.resize(order_.size(), false);
  }

  void RemoveExpired(absl::Time now) {
    for (size_t i = 0; i < order_.size(); ++i) {
      if (now - order_[i]->last_use > limits_.idle_ttl) plan_.expired += Remove(i);
    }
  }

  void KeepQuotas(uint64_t incoming_bytes, const Hash256& incoming_tenant) {
    if (limits_.tenant_quota_bytes == 0 && limits_.quotas.empty()) return;
    if (incoming_bytes > 0) tenant_bytes_[incoming_tenant] += incoming_bytes;
    for (size_t i = 0; i < order_.size(); ++i) {
      if (OverQuota(order_[i]->salt_hash)) plan_.over_quota += Remove(i);
    }
    if (incoming_bytes > 0 && OverQuota(incoming_tenant)) plan_.fits = false;
  }

  void KeepCap(uint64_t incoming_bytes) {
    if (limits_.cap_bytes == 0) return;
    const double cap = static_cast<double>(limits_.cap_bytes);
    if (Sum(incoming_bytes) > limits_.high_watermark * cap) {
      for (size_t i = 0; i < order_.size() && Sum(incoming_bytes) > limits_.low_watermark * cap;
           ++i) {
        plan_.over_cap += Remove(i);
      }
    }
    if (incoming_bytes > 0 && Sum(incoming_bytes) > cap) plan_.fits = false;
  }

  EvictionPlan Take() { return std::move(plan_); }

 private:
  double Sum(uint64_t incoming_bytes) const {
    return static_cast<double>(left_) + static_cast<double>(incoming_bytes);
  }

  bool OverQuota(const Hash256& tenant) const {
    const auto own = limits_.quotas.find(tenant);
    const uint64_t quota = own != limits_.quotas.end() ? own->second : limits_.tenant_quota_bytes;
    return quota > 0 && tenant_bytes_.at(tenant) > quota;
  }

  // Returns the number of victims added: 0 or 1.
  uint64_t Remove(size_t index) {
    if (gone_[index]) return 0;
    gone_[index] = true;
    const EvictionCandidate& victim = *order_[index];
    plan_.victims.push_back(victim.name);
    plan_.freed_bytes += victim.bytes;
    left_ -= std::min(left_, victim.bytes);
    tenant_bytes_[victim.salt_hash] -= victim.bytes;
    return 1;
  }

  const DiskLimits& limits_;
  std::vector<const EvictionCandidate*> order_;
  std::vector<bool> gone_;
  std::map<Hash256, uint64_t> tenant_bytes_;
  uint64_t left_;
  EvictionPlan plan_;
};

}  // namespace

EvictionPlan PlanEviction(std::span<const EvictionCandidate> candidates, uint64_t physical_bytes,
                          uint64_t incoming_bytes, const Hash256& incoming_tenant,
                          const DiskLimits& limits, absl::Time now) {
  RI_CHECK(0 < limits.low_watermark && limits.low_watermark <= limits.high_watermark &&
           limits.high_watermark <= 1);
  Planner planner(candidates, physical_bytes, limits);
  planner.RemoveExpired(now);
  planner.KeepQuotas(incoming_bytes, incoming_tenant);
  planner.KeepCap(incoming_bytes);
  return planner.Take();
}

}  // namespace retroinfer::kvstore
