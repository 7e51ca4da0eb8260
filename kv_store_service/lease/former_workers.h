// Former workers: workers whose lease has ended while their process may still run, since a
// connection can break while both sides live.
//
// A former worker goes on reading its segments until its data plane tells it that another worker
// has the arena, and may be in the middle of writing a segment. It writes only to pages of extents
// that were not committed. No other worker gets those pages until the former worker's process is
// gone. The store knows that from the mark that the process holds in the socket folder
// (common/shm/worker_mark.h): the mark ends with the process.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv_store_service/arena/arena.h"
#include "kv_store_service/lease/worker_plane.h"

namespace retroinfer::kvstore {

struct FormerWorker {
  std::string token;                   // of the worker's attachment: names the worker's mark
  std::shared_ptr<WorkerPlane> plane;  // null once the worker has been notified (SayArenaTaken)
  std::vector<PageRun> pages;          // arena pages that the worker may still write to
};

// Threads: one at a time.
// Owns:    the planes of former workers that have not been notified.
class FormerWorkers {
 public:
  void Add(FormerWorker worker) { workers_.push_back(std::move(worker)); }

  // Notifies all former workers that another worker gets the arena. To be called before the other
  // worker can write to the arena. Returns the planes, which are not needed any more.
  std::vector<std::shared_ptr<WorkerPlane>> SayArenaTaken() {
    std::vector<std::shared_ptr<WorkerPlane>> planes;
    for (FormerWorker& worker : workers_) {
      if (worker.plane == nullptr) continue;
      worker.plane->SayArenaTaken();
      planes.push_back(std::move(worker.plane));
    }
    std::erase_if(workers_, [](const FormerWorker& worker) { return worker.pages.empty(); });
    return planes;
  }

  // The worker whose lease ended last is back, and hands its memory over: forgets and returns that
  // former worker, unless it has been notified.
  std::vector<FormerWorker> TakeReturned() {
    std::vector<FormerWorker> returned;
    if (workers_.empty() || workers_.back().plane == nullptr) return returned;
    returned.push_back(std::move(workers_.back()));
    workers_.pop_back();
    return returned;
  }

  // The process of the former worker with `token` is gone. Returns its pages, which are free now.
  std::vector<PageRun> TakePages(const std::string& token) {
    const auto at = std::find_if(workers_.begin(), workers_.end(),
                                 [&token](const auto& worker) { return worker.token == token; });
    if (at == workers_.end()) return {};
    std::vector<PageRun> pages = std::exchange(at->pages, {});
    if (at->plane == nullptr) workers_.erase(at);
    return pages;
  }

  // The store has a new arena: forgets and returns all former workers.
  std::vector<FormerWorker> TakeAll() { return std::exchange(workers_, {}); }

  const std::vector<FormerWorker>& workers() const { return workers_; }

 private:
  // In the order in which the leases ended. All but the last have been notified: the next lease
  // notifies the last.
  std::vector<FormerWorker> workers_;
};

}  // namespace retroinfer::kvstore
