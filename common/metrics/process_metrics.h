// What the kernel says of this process, under the names that Prometheus clients have in common.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <string>

#include "absl/status/statusor.h"

namespace retroinfer::common {

struct ProcessUsage {
  double cpu_seconds = 0;  // user and system
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double open_fds = 0;
  double max_fds = 0;
  double start_time_seconds = 0;  // since the epoch
};

// Reads /proc of this process.
//
// Returns: UNAVAILABLE if that cannot be read or has another form.
absl::StatusOr<ProcessUsage> ReadProcessUsage();

// Exports process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
// process_open_fds, process_max_fds and process_start_time_seconds.
//
// Threads: one at a time.
class ProcessMetrics {
 public:
  // REQUIRES: `registry` outlives this.
  explicit ProcessMetrics(prometheus::Registry& registry);

  // Takes the values of now. What cannot be read stays as it was.
  void Update();

 private:
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge& resident_bytes_;
  prometheus::Gauge& virtual_bytes_;
  prometheus::Gauge& open_fds_;
  prometheus::Gauge& max_fds_;
  prometheus::Gauge& start_time_seconds_;
};

}  // namespace retroinfer::common
