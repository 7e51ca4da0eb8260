// Metrics of ranks above 0; those of rank 0 are the engine's.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "gpu_worker/ranks/rank_group.h"

namespace retroinfer {

// Threads: one; scrapes come on any.
// Owns:    the metrics while it lives. REQUIRES: both outlive it.
class RankMetrics {
 public:
  RankMetrics(const RankGroup& ranks, common::Metrics& metrics);
  ~RankMetrics();

 private:
  struct OfRank {
    std::vector<prometheus::Counter*> counters;  // in the order of kCounters
    prometheus::Counter* waited = nullptr;
    prometheus::Gauge* slots_used = nullptr;
    prometheus::Gauge* device_bytes = nullptr;
    RankGroup::Report exported;
  };

  void Update();

  const RankGroup& ranks_;
  common::Metrics& metrics_;
  absl::Mutex mutex_;  // two scrapes may run at once
  std::vector<OfRank> by_rank_ ABSL_GUARDED_BY(mutex_);
  int scrape_id_;
};

}  // namespace retroinfer
