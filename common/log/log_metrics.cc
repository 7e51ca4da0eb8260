#include "common/log/log_metrics.h"

#include "common/log/process_log.h"

namespace retroinfer::common {

void AddLogMetrics(Metrics* metrics, const std::string& service) {
  prometheus::Counter& dropped = metrics->Counter(
      "log_lines_dropped_total",
      "Lines that the log has lost since nobody read it, or it could not be written",
      {{"service", service}});
  metrics->OnScrape([&dropped] {
    const double total = static_cast<double>(ProcessLogLinesDropped());
    dropped.Increment(total - dropped.Value());
  });
}

}  // namespace retroinfer::common
