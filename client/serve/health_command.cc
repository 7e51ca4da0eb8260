#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/serve/health_probe.h"
#include "common/build_info/build_info.h"
#include "common/clock/steady_now.h"
#include "common/rpc/liveness.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);

struct HealthOptions {
  ConnectionOptions connection;
  bool live = false;
  bool gone = false;
  std::string service;
  absl::Duration wait = absl::ZeroDuration();
  absl::Duration timeout = absl::Seconds(5);
};

void AddOptions(common::Settings* settings, HealthOptions* options) {
  CLI::App& app = settings->app();
  CLI::Option* const live =
      app.add_flag("--live", options->live,
                   "Ask whether the process is alive, not whether it can answer requests: true "
                   "while a model loads and while the store restarts");
  app.add_option("--service", options->service,
                 "Ask for one gRPC service by its full name, not for the whole server")
      ->excludes(live);
  app.add_flag("--gone", options->gone,
               "Ask whether nobody answers any more: for what may end only after the server has");
  settings->AddDuration("--wait", &options->wait, "Ask again for so long until the answer is yes");
  settings->AddDuration("--timeout", &options->timeout, "Longest wait for one answer");
  settings->NameVariable("--timeout", "RETROINFER_HEALTH_TIMEOUT");
  app.add_option("--address", options->connection.address,
                 "Of a worker or a store: host:port, or unix: and a path")
      ->group("Connection");
  AddTlsOptions(settings, &options->connection);
}

// With --gone, one that is too busy to answer in time counts as there.
bool IsWanted(const absl::Status& status, const HealthOptions& options) {
  return options.gone ? absl::IsUnavailable(status) : status.ok();
}

std::string Explain(const absl::Status& status, const HealthOptions& options) {
  const std::string& address = options.connection.address;
  if (options.gone) return absl::StrCat(address, " is still there");
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
      return absl::StrCat(address, " is not serving");
    case absl::StatusCode::kNotFound:
      return absl::StrCat(address, " knows no service ", options.service);
    default:
      return absl::StrCat("no answer from ", address, ": ", std::string(status.message()));
  }
}

}  // namespace

int HealthCommand(int argc, const char* const* argv, const Streams& streams) {
  HealthOptions options;
  common::Settings settings(
      "Asks a worker or a store whether it can answer requests. Exit code 0: yes; 1: no, or nobody "
      "answers. Needs no API key.",
      common::kBuildVersion);
  AddOptions(&settings, &options);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  if (options.live) options.service = common::kLivenessService;
  const auto open = [&](grpc::ChannelArguments arguments) {
    return OpenChannel(options.connection, std::move(arguments));
  };
  if (const auto channel = open({}); !channel.ok()) {
    return Fail(streams, "health", std::string(channel.status().message()), kExitUsage);
  }
  HealthProbe probe(open);
  const absl::Time deadline = common::SteadyNow() + options.wait;
  absl::Status status = probe.Check(options.service, options.timeout);
  while (!IsWanted(status, options) && common::SteadyNow() < deadline) {
    absl::SleepFor(kRetryInterval);
    status =
        probe.Check(options.service, std::min(options.timeout, deadline - common::SteadyNow()));
  }
  if (!IsWanted(status, options)) {
    return Fail(streams, "health", Explain(status, options), kExitFailed);
  }
  std::fputs(options.gone ? "gone\n" : "serving\n", streams.out);
  return kExitOk;
}

}  // namespace retroinfer::client
