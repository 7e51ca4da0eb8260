// Which durable segments to remove. Pure logic.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

// How much may lie on the disk.
struct DiskLimits {
  uint64_t cap_bytes = 0;              // physical; 0: no cap
  double high_watermark = 0.9;         // of the cap: above it segments are removed ...
  double low_watermark = 0.8;          // ... until at most this is left
  uint64_t tenant_quota_bytes = 0;     // of images of one tenant; 0: no quota
  std::map<Hash256, uint64_t> quotas;  // by salt hash, instead of tenant_quota_bytes
  absl::Duration idle_ttl = absl::InfiniteDuration();  // not used for longer than this: removed
};

// A segment as eviction sees it.
struct EvictionCandidate {
  SegmentName name;
  Hash256 salt_hash;
  uint64_t bytes = 0;  // that removing it frees
  uint64_t token_begin = 0;
  absl::Time last_use;
  bool is_protected = false;  // pinned or referenced: never removed
};

struct EvictionPlan {
  std::vector<SegmentName> victims;  // in the order of their removal
  uint64_t freed_bytes = 0;
  uint64_t expired = 0;     // victims that were idle for too long
  uint64_t over_quota = 0;  // victims of a tenant above its quota
  uint64_t over_cap = 0;    // victims of the watermark
  bool fits = true;         // false: even so, the incoming bytes would break the cap or a quota
};

// Plans so that `incoming_bytes` of `incoming_tenant` can be added. First what was idle for too
// long, then of each tenant above its quota the least recently used until it is within, then over
// all tenants the least recently used: if physical + incoming is above the high watermark, until it
// is at most the low one. Of equally old segments the one with the greatest token_begin goes first,
// then by name: the end of a prefix before its beginning.
//
// REQUIRES: 0 < low_watermark <= high_watermark <= 1.
EvictionPlan PlanEviction(std::span<const EvictionCandidate> candidates, uint64_t physical_bytes,
                          uint64_t incoming_bytes, const Hash256& incoming_tenant,
                          const DiskLimits& limits, absl::Time now);

}  // namespace retroinfer::kvstore
