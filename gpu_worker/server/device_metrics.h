// What the device's driver tells, for metrics.
#pragma once

#include "common/metrics/metrics.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

// Exports device_memory_in_use_bytes, which also has what this process did not allocate itself:
// kernels, recorded graphs, workspaces of libraries. The driver is asked at each scrape, on the
// scraping thread.
class DeviceMetrics {
 public:
  // REQUIRES: both outlive this.
  DeviceMetrics(const Device& device, common::Metrics& metrics);
  ~DeviceMetrics();
  DeviceMetrics(const DeviceMetrics&) = delete;
  DeviceMetrics& operator=(const DeviceMetrics&) = delete;

 private:
  const Device& device_;
  common::Metrics& metrics_;
  prometheus::Gauge& in_use_;
  int scrape_id_;
};

}  // namespace retroinfer
