// Keeps services running: the kv_store_service, the gpu_worker, and perhaps the http_gateway.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/serve/child_process.h"
#include "client/serve/health_probe.h"

namespace retroinfer::client {

struct ServiceSpec {
  std::string name;                    // for messages
  std::vector<std::string> arguments;  // the first is the program's path
  std::string health_address;          // where its health service listens
  absl::Duration stop_grace;  // to SIGKILL: from SIGTERM, or from the end of drain_timeout if later
  // Of one that lets work go on after SIGTERM: from the beginning of Stop() to a second SIGTERM,
  // which ends that work. Zero: there is nothing to wait for.
  absl::Duration drain_timeout = absl::ZeroDuration();
  bool stops_first = false;      // before those behind it in the order of starting
  bool health_is_http = false;   // it answers HTTP there, on a unix socket
  bool checks_settings = false;  // takes --check-settings, see CheckSettings()
  bool counts_restarts = false;  // takes --restarts: how often it was restarted before
  int output = -1;               // takes its stdout and stderr, see ChildProcess::Start()
  std::string log_path = {};     // what `output` writes, for messages; empty: unknown
};

// Waits before the restarts of a service that keeps dying: 0.5 s, doubled each time up to 30 s,
// from the beginning again after a minute without a death.
class RestartDelay {
 public:
  // Returns how long to wait after a death at `now` of a process that was started at `started`.
  absl::Duration Next(absl::Time started, absl::Time now);

 private:
  absl::Duration next_ = absl::Milliseconds(500);
};

// Starts services in their order, restarts those that die once all have been up, and stops them in
// the reverse order, those with stops_first before the others. A service whose exit code is
// kExitUsage would end so again: that ends all at once.
//
// Threads: one, which must be the main thread (see ChildProcess); Reload() any thread.
class Supervisor {
 public:
  enum class Severity { kInfo, kWarning };
  using Report = std::function<void(Severity severity, const std::string& message)>;

  // Deaths in a row, of one service that has not served in between, after which it is given up.
  static constexpr int kQuickDeathsMax = 4;
  static constexpr absl::Duration kHurryTime = absl::Seconds(5);

  // `should_stop` returns the number of signals that have asked to stop: at the first one the
  // services get SIGTERM and their time, at the second those that drain get SIGTERM once more and
  // all have kHurryTime, at the third SIGKILL.
  Supervisor(std::vector<ServiceSpec> specs, std::function<int()> should_stop, Report report);

  // Starts one service after the other, each when the one before is serving; before the first of
  // them, those with checks_settings say what they think of theirs.
  //
  // Returns: CANCELLED if asked to stop; FAILED_PRECONDITION if a service ends meanwhile,
  //          INVALID_ARGUMENT if it ends with kExitUsage; as CheckSettings().
  absl::Status Start();

  // Returns: FAILED_PRECONDITION or INVALID_ARGUMENT as Start(), with the last lines of its log, if
  //          a service that was started has ended. For those who do not Watch(). Never blocks.
  absl::Status Check();

  // Runs until it is asked to stop, restarting what dies.
  //
  // Returns: FAILED_PRECONDITION or INVALID_ARGUMENT as Start(), with the last lines of its log, if
  //          a service is given up.
  absl::Status Watch();

  // Sends SIGHUP to all services, soon.
  void Reload() { reload_ = true; }

  // Stops all services. All drain until the same time: none begins when another one has ended.
  void Stop();

 private:
  struct Service {
    ServiceSpec spec;
    std::optional<ChildProcess> process;
    std::unique_ptr<HealthProbe> probe;  // null: health_is_http
    bool serving = false;
    RestartDelay delay;
    absl::Time started;
    absl::Time restart_at;  // while there is no process
    int64_t starts = 0;
    int quick_deaths = 0;  // since it last served
  };

  static bool IsServing(Service& service);
  absl::Status StartService(Service& service);
  absl::Status AwaitServing(Service& service);
  absl::Status Tend(Service& service);
  absl::Status NoteDeath(Service& service, const ProcessEnd& end);
  void StopService(Service& service, absl::Time stop_begun);
  void ForwardReload();

  const std::function<int()> should_stop_;
  const Report report_;
  std::atomic<bool> reload_{false};
  std::vector<Service> services_;
};

}  // namespace retroinfer::client
