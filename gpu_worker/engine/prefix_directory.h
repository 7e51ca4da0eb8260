// Numbers of prefixes that requests may have in common, as the scheduler knows them.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/wave_index/named_prefix.h"

namespace retroinfer {

// A prefix is known by its first segment's name, which says all that matters of what comes before
// and in it. It keeps its number while it has requests, and as long as few others came since; no
// number is ever given twice.
class PrefixDirectory {
 public:
  static constexpr size_t kRemembered = 256;  // without requests

  // A request with this prefix came. Returns its number, or 0 if it has no segment with a name.
  uint64_t Acquire(const NamedPrefix& prefix);
  // A request has ended. REQUIRES: `prefix` as Acquire was told.
  void Release(const NamedPrefix& prefix);

 private:
  struct Entry {
    uint64_t number = 0;
    int64_t requests = 0;
  };

  absl::flat_hash_map<common::SegmentName, Entry> entries_;
  std::deque<common::SegmentName> idle_;  // without requests when they were put here, longest first
  uint64_t last_number_ = 0;
};

}  // namespace retroinfer
