#include "common/door/door_metrics.h"

#include <vector>

namespace retroinfer::common {

DoorMetrics::DoorMetrics(const Door& door, Metrics& metrics, const std::string& service)
    : door_(door),
      metrics_(metrics),
      connections_(metrics.Gauge("connections", "Connections of gRPC clients that are open",
                                 {{"service", service}})),
      open_calls_(metrics.Gauge("open_calls", "gRPC calls that are open", {{"service", service}})) {
  const auto add = [&](const char* name, const char* help, uint64_t DoorStats::*value,
                       const char* result = nullptr) {
    Metrics::Labels labels = {{"service", service}};
    if (result != nullptr) labels.emplace("result", result);
    counters_.push_back({metrics.Counter(name, help, labels), value});
  };
  constexpr char kArrivals[] = "Connections that came, by what became of them";
  add("connections_total", kArrivals, &DoorStats::connections_accepted, "accepted");
  add("connections_total", kArrivals, &DoorStats::connections_refused, "refused");
  add("connections_closed_total", "Connections that were closed for what they did or did not do",
      &DoorStats::connections_closed);
  add("lost_calls_total", "Calls that were reset or came too late before a handler answered",
      &DoorStats::lost_calls);
  if (door.stats().certificate_expires < absl::InfiniteFuture()) {
    certificate_expiry_ =
        &metrics.Gauge("certificate_expiry_timestamp_seconds",
                       "When the certificate in use expires", {{"service", service}});
    add("certificate_reload_failures_total",
        "Changed certificates that were not taken because they were bad",
        &DoorStats::certificate_reloads_failed);
  }
  update_id_ = metrics.OnScrape([this] { Update(); });
}

DoorMetrics::~DoorMetrics() { metrics_.RemoveOnScrape(update_id_); }

void DoorMetrics::Update() {
  const DoorStats stats = door_.stats();
  connections_.Set(static_cast<double>(stats.connections));
  open_calls_.Set(static_cast<double>(stats.open_calls));
  if (certificate_expiry_ != nullptr) {
    certificate_expiry_->Set(static_cast<double>(absl::ToUnixSeconds(stats.certificate_expires)));
  }
  for (Counter& counter : counters_) {
    const double now = static_cast<double>(stats.*counter.value);
    counter.metric.Increment(now - counter.metric.Value());
  }
}

}  // namespace retroinfer::common
