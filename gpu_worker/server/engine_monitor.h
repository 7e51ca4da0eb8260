// Watches the engine: readiness for the health service, gauges for metrics, a line for the log.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "gpu_worker/engine/engine.h"

namespace retroinfer {

// Returns what is new in `now` against `before`, taken `elapsed` earlier; nothing if the engine was
// idle all that time.
std::optional<std::string> StatisticsLine(const EngineStats& before, const EngineStats& now,
                                          absl::Duration elapsed);

// Share of the device memory for KV that sequences hold, in [0, 1]: of the dense blocks or the meta
// blocks, whichever is fuller.
double KvCacheUsage(const EngineStats& stats);

// Threads: has one of its own, which calls `on_ready`.
class EngineMonitor {
 public:
  // Calls `on_ready(ready)` at once and at every change, and logs a statistics line every
  // `interval`.
  //
  // REQUIRES: `engine` and `metrics` outlive this.
  EngineMonitor(const Engine& engine, common::Metrics& metrics, absl::Duration interval,
                std::function<void(bool ready)> on_ready);
  ~EngineMonitor();

 private:
  class Exporter;  // puts EngineStats into the metrics at each scrape

  void Run();

  const Engine& engine_;
  const absl::Duration interval_;
  const std::function<void(bool)> on_ready_;
  const std::unique_ptr<Exporter> exporter_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace retroinfer
