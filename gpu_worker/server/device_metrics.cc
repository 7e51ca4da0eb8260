#include "gpu_worker/server/device_metrics.h"

namespace retroinfer {

DeviceMetrics::DeviceMetrics(const Device& device, common::Metrics& metrics)
    : device_(device),
      metrics_(metrics),
      in_use_(
          metrics.Gauge("device_memory_in_use_bytes",
                        "Memory of the device that is in use, by whomever, as its driver has it")) {
  scrape_id_ = metrics_.OnScrape([this] {
    // Without an answer the last one stays.
    if (const absl::StatusOr<size_t> bytes = device_.MemoryInUse(); bytes.ok()) {
      in_use_.Set(static_cast<double>(*bytes));
    }
  });
}

DeviceMetrics::~DeviceMetrics() { metrics_.RemoveOnScrape(scrape_id_); }

}  // namespace retroinfer
