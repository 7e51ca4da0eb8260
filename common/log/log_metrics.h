// What the metrics of a service say about its log.
#pragma once

#include "common/metrics/metrics.h"

namespace retroinfer::common {

// Adds log_lines_dropped_total.
void AddLogMetrics(Metrics* metrics);

}  // namespace retroinfer::common
