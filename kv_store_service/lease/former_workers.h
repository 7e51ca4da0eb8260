// Workers whose lease has ended while their process may still run: a connection can break while
// both sides live.
//
// Such a worker goes on to read what it has, until it learns from its data plane that the arena is
// another one's, and may be in the middle of writing a segment. The pages that it may write to
// belong to nobody until its process is gone: pages of extents that were not committed, since it
// writes nowhere else. Whether it is gone is known from the mark that it holds in the socket folder
// (common/shm/worker_mark.h), which ends with the process.
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
  std::string token;                   // of its attachment: names its mark
  std::shared_ptr<WorkerPlane> plane;  // null: it was told that the arena is another one's
  std::vector<PageRun> pages;          // of the arena, that it may write to
};

// Threads: one at a time.
// Owns:    the planes, which tell; page numbers.
class FormerWorkers {
 public:
  void Add(FormerWorker worker) { workers_.push_back(std::move(worker)); }

  // Tells all that the arena goes to another worker, before that one can write to it. Returns the
  // planes, which are not needed any more.
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

  // Forgets the one that was not told, if there is one: its memory is back. Returns it.
  std::vector<FormerWorker> TakeReturned() {
    std::vector<FormerWorker> returned;
    if (workers_.empty() || workers_.back().plane == nullptr) return returned;
    returned.push_back(std::move(workers_.back()));
    workers_.pop_back();
    return returned;
  }

  // Returns the pages of the one of `token`, whose process is gone: they are nobody's now.
  std::vector<PageRun> TakePages(const std::string& token) {
    const auto at = std::find_if(workers_.begin(), workers_.end(),
                                 [&token](const auto& worker) { return worker.token == token; });
    if (at == workers_.end()) return {};
    std::vector<PageRun> pages = std::exchange(at->pages, {});
    if (at->plane == nullptr) workers_.erase(at);
    return pages;
  }

  // Forgets all: the store has another arena. Returns them.
  std::vector<FormerWorker> TakeAll() { return std::exchange(workers_, {}); }

  const std::vector<FormerWorker>& workers() const { return workers_; }

 private:
  // In the order in which their leases ended. Only the last one may not have been told: the next
  // lease tells it.
  std::vector<FormerWorker> workers_;
};

}  // namespace retroinfer::kvstore
