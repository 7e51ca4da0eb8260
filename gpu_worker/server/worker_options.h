// The settings of the gpu_worker program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/log/process_log.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/server/server_options.h"

namespace retroinfer {

struct WorkerOptions : ServedEngineOptions {
  ServerOptions server;
  std::string metrics_address;  // "host:port"; empty: none
  int64_t restarts = 0;         // of this service before, by its supervisor
  common::LogOptions log;
  bool checks_only = false;                          // see Settings::checks_only()
  std::vector<std::string> warnings;                 // about what was given, for the log
  absl::Duration drain_timeout = absl::Seconds(30);  // on SIGTERM
};

// Parses flags, environment and config file (common/config/settings.h), and reads the API key's
// file.
//
// Returns: true to run, false if help or version was printed; INVALID_ARGUMENT with what is wrong.
absl::StatusOr<bool> ParseWorkerOptions(int argc, const char* const* argv, WorkerOptions* options);

}  // namespace retroinfer
