// Shows the store's statistics as Prometheus metrics.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <functional>
#include <vector>

#include "common/metrics/metrics.h"
#include "kv_store_service/store/kv_store.h"

namespace retroinfer::kvstore {

// Reads KvStore::stats() once per scrape.
//
// Threads: made and destroyed on one thread; updates run on scraping threads.
class StoreMetrics {
 public:
  // REQUIRES: `metrics` and `store` outlive this object.
  StoreMetrics(common::Metrics* metrics, const KvStore* store);
  ~StoreMetrics();
  StoreMetrics(const StoreMetrics&) = delete;
  StoreMetrics& operator=(const StoreMetrics&) = delete;

 private:
  using Value = std::function<double(const StoreStats&)>;
  struct Gauge {
    prometheus::Gauge* gauge;
    Value value;
  };
  struct Counter {
    prometheus::Counter* counter;
    Value value;
  };

  void AddGauge(const char* name, const char* help, Value value,
                const common::Metrics::Labels& labels = {});
  void AddCounter(const char* name, const char* help, Value value,
                  const common::Metrics::Labels& labels = {});
  void AddDurable();
  void AddParts();
  void AddTierStates();
  void AddRank(size_t rank);
  void Update();

  common::Metrics* const metrics_;
  const KvStore* const store_;
  std::vector<Gauge> gauges_;
  size_t num_ranks_ = 0;  // that have metrics of their own
  std::vector<Counter> counters_;
  int update_id_;
};

}  // namespace retroinfer::kvstore
