// Expired leases: leases that have ended while their worker's process may still run, since a
// connection can break while both sides live.
//
// The worker of an expired lease goes on reading its segments until its data planes tell it that
// another worker has the arena, and may be in the middle of writing a segment. It writes only to
// pages of extents that were not committed. No other worker gets those pages until the process is
// gone. The store knows that from the mark that the process holds in the socket folder
// (common/shm/worker_mark.h): the mark ends with the process.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv_store_service/arena/arena.h"
#include "kv_store_service/lease/worker_planes.h"

namespace retroinfer::kvstore {

struct ExpiredLease {
  std::string token;                     // of the worker's attachment: names the worker's mark
  std::shared_ptr<WorkerPlanes> planes;  // null once the worker has been notified
  std::vector<PageRun> pages;            // arena pages that the worker may still write to
};

// Threads: one at a time.
// Owns:    the planes of leases whose worker has not been notified.
class ExpiredLeases {
 public:
  void Add(ExpiredLease lease) { leases_.push_back(std::move(lease)); }

  // Notifies the workers of all expired leases that another worker gets the arena. To be called
  // before the other worker can write to the arena. Returns the planes, which are not needed any
  // more.
  std::vector<std::shared_ptr<WorkerPlanes>> NotifyArenaTaken() {
    std::vector<std::shared_ptr<WorkerPlanes>> planes;
    for (ExpiredLease& lease : leases_) {
      if (lease.planes == nullptr) continue;
      lease.planes->NotifyArenaTaken();
      planes.push_back(std::move(lease.planes));
    }
    std::erase_if(leases_, [](const ExpiredLease& lease) { return lease.pages.empty(); });
    return planes;
  }

  // The worker whose lease ended last is back, and hands its memory over: forgets and returns that
  // lease, unless its worker has been notified.
  std::vector<ExpiredLease> TakeHandedBack() {
    std::vector<ExpiredLease> returned;
    if (leases_.empty() || leases_.back().planes == nullptr) return returned;
    returned.push_back(std::move(leases_.back()));
    leases_.pop_back();
    return returned;
  }

  // The process of the lease with `token` is gone. Returns its pages, which are free now.
  std::vector<PageRun> TakePages(const std::string& token) {
    const auto at = std::find_if(leases_.begin(), leases_.end(),
                                 [&token](const auto& lease) { return lease.token == token; });
    if (at == leases_.end()) return {};
    std::vector<PageRun> pages = std::exchange(at->pages, {});
    if (at->planes == nullptr) leases_.erase(at);
    return pages;
  }

  // The store has a new arena: forgets and returns all expired leases.
  std::vector<ExpiredLease> TakeAll() { return std::exchange(leases_, {}); }

  const std::vector<ExpiredLease>& leases() const { return leases_; }

 private:
  // In the order in which the leases ended. The workers of all but the last have been notified: the
  // next lease notifies the last.
  std::vector<ExpiredLease> leases_;
};

}  // namespace retroinfer::kvstore
