// What the gateway counts.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <map>
#include <string>
#include <utility>

#include "common/metrics/metrics.h"

namespace retroinfer::gateway {

// Threads: the io_context's; metrics may be read on any.
class GatewayMetrics {
 public:
  // REQUIRES: `metrics` outlives this.
  explicit GatewayMetrics(common::Metrics& metrics);

  // `path`: one that is served, or "other", so that strangers make no new series.
  void OnResponse(const std::string& path, int status);
  void OnGenerations(int open) { generations_.Set(open); }
  void OnStreamBytes(size_t bytes) { stream_bytes_.Increment(static_cast<double>(bytes)); }
  void OnClientGone() { clients_gone_.Increment(); }

 private:
  common::Metrics& metrics_;
  prometheus::Gauge& generations_;
  prometheus::Counter& stream_bytes_;
  prometheus::Counter& clients_gone_;
  std::map<std::pair<std::string, int>, prometheus::Counter*> responses_;
};

}  // namespace retroinfer::gateway
