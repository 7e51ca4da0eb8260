// Mistakes in a service's settings, found before anything is started.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/serve/supervisor.h"

namespace retroinfer::client {

// Runs the service's program with --check-settings, which ends without having taken memory, ports
// or files, and waits for its end.
//
// Threads: the main thread (see ChildProcess).
// Returns: what the program said: INVALID_ARGUMENT if it ended with kExitUsage, else
//          FAILED_PRECONDITION; CANCELLED once `should_stop` returns more than 0;
//          DEADLINE_EXCEEDED, and the program is killed, after `patience`; the errors of
//          ChildProcess::Start().
absl::Status CheckSettings(const ServiceSpec& spec, const std::function<int()>& should_stop,
                           absl::Duration patience = absl::Minutes(2));

}  // namespace retroinfer::client
