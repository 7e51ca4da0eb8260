// What the metrics of a service say about its log.
#pragma once

#include <string>

#include "common/metrics/metrics.h"

namespace retroinfer::common {

// Adds log_lines_dropped_total with the label `service`.
void AddLogMetrics(Metrics* metrics, const std::string& service);

}  // namespace retroinfer::common
