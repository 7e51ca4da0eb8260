// Prometheus metrics of one service.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer::common {

class MetricsServer;

// A registry whose names begin with `retroinfer_`, and the HTTP server that shows it. What the
// kernel says of the process is there as well, see ProcessMetrics. docs/operate/metrics.md lists
// all metrics of both services; a test holds that. A name is of one service, or has a label
// `service`: a sum over both services never adds what does not belong together.
//
// Threads: all methods on any thread; the returned metrics are thread-safe. A metric must be looked
//          up once and kept: the look-up takes locks.
// Owns:    the metrics, which live as long as this object, and the HTTP server.
class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;  // never with a user's value

  // Adds retroinfer_build_info{service, version, revision, backend} = 1, and
  // retroinfer_process_restarts_total{service}.
  Metrics(const std::string& service, const std::string& version, const std::string& revision,
          const std::string& backend);
  ~Metrics();

  // Return the metric retroinfer_`name` with the given labels, made at the first call.
  //
  // REQUIRES: a valid Prometheus name; counters end in _total.
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const Labels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const Labels& labels = {});
  // `buckets`: upper bounds, ascending; the same at every call for one name.
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& buckets, const Labels& labels = {});

  // Says how often a supervisor has restarted this service before. Called at most once.
  void SetRestarts(int64_t restarts);

  // Runs `update` at the beginning of each scrape, on the scraping thread: the place to set gauges.
  // RemoveOnScrape() waits for a run in progress; after it `update` is not called any more.
  int OnScrape(std::function<void()> update);
  void RemoveOnScrape(int id);

  // Returns all metrics in the text exposition format, as GET /metrics does.
  std::string Render();

  // Starts the HTTP server on "host:port"; port 0 takes a free one. Returns the port.
  //
  // Returns: INVALID_ARGUMENT or UNAVAILABLE if the address is not valid or taken.
  absl::StatusOr<int> Serve(const std::string& address);

 private:
  class Source;  // runs the updates, then collects the registry

  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<Source> source_;
  prometheus::Counter* restarts_;
  std::unique_ptr<MetricsServer> server_;
};

}  // namespace retroinfer::common
