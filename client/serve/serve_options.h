// The options of `retroinfer serve`, and the services that they describe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/serve/supervisor.h"
#include "common/config/settings.h"
#include "common/config/socket_dir.h"
#include "common/log/process_log.h"

namespace retroinfer::client {

struct ServeOptions {
  // Of options that go to a service as they are, by the flag of `serve`; empty: not given.
  std::map<std::string, std::string, std::less<>> passed;
  std::string socket_dir = common::DefaultSocketDir();  // see common::SocketDirOf()
  bool cache_optional = false;
  bool strict_parameters = false;  // of the gateway
  std::string bin_dir;             // empty: the folder of this program
  absl::Duration drain_timeout = absl::Seconds(30);
  common::LogOptions log;  // of `serve` and of all services
  // The worker listens on WorkerAddress() alone, there is no gateway, and a metrics endpoint that
  // is not given is off.
  bool is_private = false;

  const std::string& Passed(std::string_view flag) const {
    static const std::string none;
    const auto found = passed.find(flag);
    return found == passed.end() ? none : found->second;
  }
};

// Adds all of them; `options` gets the results.
void AddServeOptions(common::Settings* settings, ServeOptions* options);

// Finds mistakes that the services would report less clearly, fills in bin_dir, and makes
// socket_dir the folder that will have the sockets.
//
// Returns: INVALID_ARGUMENT if no model is named or the programs are not there; what is wrong with
//          the model's folder.
absl::Status CheckServeOptions(ServeOptions* options);

// Puts a free port in the place of port 0 in the addresses of both APIs, so that it can be told,
// and is the same for a service that is started again. Nothing keeps others from taking it
// meanwhile.
//
// Returns: INVALID_ARGUMENT or UNAVAILABLE as common::Listen().
absl::Status ChooseFreePorts(ServeOptions* options);

// Checks that the ports of both APIs and of the metrics can be had, before memory is allocated for
// a server that could not listen. Nothing keeps others from taking them meanwhile.
//
// Returns: INVALID_ARGUMENT or UNAVAILABLE as common::Listen(), with the flag.
absl::Status CheckPorts(const ServeOptions& options);

// The API's addresses, separated by commas, without WorkerAddress().
std::string ListenAddresses(const ServeOptions& options);

// The socket on which the worker listens besides those: always, and in plain text also with TLS.
std::string WorkerAddress(const ServeOptions& options);

// Whether http_gateway is started, too.
bool HasGateway(const ServeOptions& options);

// The store, then the gateway if there is one, then the worker: when the worker is ready, so is
// everything. Until then the gateway says that the model is loading.
std::vector<ServiceSpec> ServiceSpecs(const ServeOptions& options);

}  // namespace retroinfer::client
