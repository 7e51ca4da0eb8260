// The settings of the http_gateway program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/log/process_log.h"
#include "http_gateway/http/http_server.h"
#include "http_gateway/server/gateway.h"
#include "http_gateway/worker/worker_client.h"

namespace retroinfer::gateway {

struct GatewaySettings {
  HttpServerOptions server;
  GatewayOptions gateway;
  WorkerClientOptions worker;
  std::string metrics_address;                       // "host:port"; empty: only /metrics of the API
  int64_t restarts = 0;                              // of this service before, by its supervisor
  absl::Duration drain_timeout = absl::Seconds(30);  // on SIGTERM
  common::LogOptions log;
  bool checks_only = false;           // see Settings::checks_only()
  std::vector<std::string> warnings;  // about what was given, for the log
};

// Parses flags, environment and config file (common/config/settings.h), and reads the keys' files.
//
// Returns: true to run, false if help or version was printed; INVALID_ARGUMENT with what is wrong.
absl::StatusOr<bool> ParseGatewaySettings(int argc, const char* const* argv,
                                          GatewaySettings* settings);

}  // namespace retroinfer::gateway
