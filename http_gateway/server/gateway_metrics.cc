#include "http_gateway/server/gateway_metrics.h"

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {

GatewayMetrics::GatewayMetrics(common::Metrics& metrics)
    : metrics_(metrics),
      generations_(metrics.Gauge("gateway_generations", "Generations that are being answered")),
      stream_bytes_(metrics.Counter("gateway_stream_bytes_total",
                                    "Bytes of server-sent events that were written")),
      clients_gone_(metrics.Counter("gateway_clients_gone_total",
                                    "Clients that went away before their answer's end")) {}

void GatewayMetrics::OnResponse(const std::string& path, int status) {
  prometheus::Counter*& counter = responses_[{path, status}];
  if (counter == nullptr) {
    counter = &metrics_.Counter("gateway_responses_total", "HTTP responses by path and status",
                                {{"path", path}, {"status", absl::StrCat(status)}});
  }
  counter->Increment();
}

}  // namespace retroinfer::gateway
