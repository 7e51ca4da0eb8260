// What Prometheus reads of a door.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/door/door.h"
#include "common/metrics/metrics.h"

namespace retroinfer::common {

// Threads: any.
class DoorMetrics {
 public:
  // `service`: value of the label of that name, since both services have a door.
  //
  // REQUIRES: both outlive this object.
  DoorMetrics(const Door& door, Metrics& metrics, const std::string& service);
  ~DoorMetrics();
  DoorMetrics(const DoorMetrics&) = delete;
  DoorMetrics& operator=(const DoorMetrics&) = delete;

 private:
  struct Counter {
    prometheus::Counter& metric;
    uint64_t DoorStats::*value;
  };
  void Update();

  const Door& door_;
  Metrics& metrics_;
  prometheus::Gauge& connections_;
  prometheus::Gauge& open_calls_;
  prometheus::Gauge* certificate_expiry_ = nullptr;  // null: no TLS
  std::vector<Counter> counters_;
  int update_id_ = 0;
};

}  // namespace retroinfer::common
