// Blocked requests: waiting and suspended ones that lacked memory when their turn came. One of them
// is the head of line, for which freed memory is reserved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/preempting_requests.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    ids and times; `preempting` outlives the object.
class BlockedRequests {
 public:
  // Seconds for which a blocked request lets others overtake.
  static constexpr double kPatience = 2;

  explicit BlockedRequests(const PreemptingRequests& preempting) : preempting_(preempting) {}

  // Forgets requests that are no longer blocked.
  void Update(const SchedulerInput& input);
  // Notes that the request lacks memory now. `is_head`: memory is reserved for the request from now
  // on, and the requests that hold memory now are the ones whose ends the reservation may wait for.
  void Block(const SchedulerInput& input, const RequestDescription& request, bool is_head);

  // The request for which freed memory is reserved: a preempting request first, else the request
  // that has been blocked longest, if that is more than kPatience; null: there is none. A request
  // that is blocked on the arena is skipped while others are suspended: the suspended requests hold
  // their extents, and would wait for device memory reserved for the request that waits for them.
  // Cost: O(requests).
  const RequestDescription* HeadOfLine(const SchedulerInput& input) const;
  // The request that has been blocked on the arena longest, and more than kPatience; null: there is
  // none. Freed pages are reserved for it until it has its extents, also while it lacks device
  // memory and while it waits for the store's answer: otherwise short requests would take the pages
  // one by one. Cost: O(requests).
  const RequestDescription* HeadOfLineForArena(const SchedulerInput& input) const;

  // Whether the request has been the head of line since it was blocked.
  bool WasHeadOfLine(const RequestDescription& request) const;
  // Reserves memory for the head of line. Returns how many requests have to end before it can
  // begin.
  size_t ReserveFor(const RequestDescription& head, MemoryBank& bank) const;
  // Whether the request may take what is reserved for `head`. A request of a higher class may,
  // until the head of line has waited so long that ageing has brought it up to that class.
  bool MayOvertake(const RequestDescription& request, const RequestDescription& head,
                   double now) const;

 private:
  struct Blocked {
    double since = 0;            // seconds
    bool lacks_extents = false;  // the arena was full when the request asked last
    // Requests that held memory when this request first became the head of line, sorted: the
    // reservation waits for the end of no others. None: it was never the head of line.
    std::optional<std::vector<uint64_t>> holders = std::nullopt;
  };

  const PreemptingRequests& preempting_;
  absl::flat_hash_map<uint64_t, Blocked> blocked_;  // by request id
};

}  // namespace retroinfer
