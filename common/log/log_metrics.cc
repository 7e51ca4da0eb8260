#include "common/log/log_metrics.h"

#include "common/log/process_log.h"

namespace retroinfer::common {

void AddLogMetrics(Metrics* metrics) {
  prometheus::Counter& dropped = metrics->Counter(
      "log_lines_dropped_total", "Lines that the log lost since nobody read it or it was full");
  metrics->OnScrape([&dropped] {
    const double total = static_cast<double>(ProcessLogLinesDropped());
    dropped.Increment(total - dropped.Value());
  });
}

}  // namespace retroinfer::common
