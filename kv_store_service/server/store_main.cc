#include "kv_store_service/server/store_main.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/build_info/build_info.h"
#include "common/config/byte_size.h"
#include "common/config/settings.h"
#include "common/config/socket_dir.h"
#include "common/log/process_log.h"
#include "common/process/exit_status.h"
#include "common/process/service_signals.h"
#include "common/rpc/loopback.h"
#include "common/service/service_notifier.h"
#include "kv_store_service/persistence/payload_table.h"
#include "kv_store_service/server/store_server.h"

namespace retroinfer::kvstore {
namespace {

// Of a start, without a sign of life: the recovery of a large database, the pages of a large arena.
constexpr absl::Duration kLongestStep = absl::Minutes(15);
// Longer than DurableTierOptions::stop_timeout, shorter than what supervisors grant.
constexpr unsigned kStopTimeout = 8;
constexpr absl::Duration kCallsTimeout = absl::Seconds(1);  // of which most is spent on the disk

void AddOptions(common::Settings* settings, StoreServerOptions* options) {
  CLI::App& app = settings->app();
  settings->AddByteSize("--arena-bytes", &options->arena_bytes,
                        "Size of the shared memory that holds the KV pages, allocated in full at "
                        "start");
  app.add_option(
      "--socket-dir", options->socket_dir,
      "Folder of the sockets, made with mode 0700 if it does not exist. In one that others "
      "may enter (/tmp, the root of a volume, a Kubernetes emptyDir) they are in a "
      "folder retroinfer-<user id> of mode 0700. Give all programs the same, and the "
      "same user");
  app.add_option("--listen", options->listen,
                 "host:port for gRPC over TCP, besides the unix socket");
  app.add_option("--metrics-address", options->metrics_address,
                 "host:port of the Prometheus endpoint, or none");
  app.add_option("--restarts", options->restarts,
                 "How often a supervisor has restarted this service; shown as a metric")
      ->check(CLI::Range(0, 1'000'000));
  settings->AddDuration("--adopt-wait", &options->adopt_wait,
                        "After a restart: how long to wait for a live worker to hand the memory "
                        "back");
  app.add_option(
      "--cache-dir", options->durable.folder,
      "Folder of mode 0700 for durable segments; made if it does not exist; empty: none");
  app.add_flag("--cache-optional", options->durable_optional,
               "Start without durable contexts if --cache-dir cannot be used, instead of ending "
               "with an error. A full disk never ends the service");
  app.add_option(
         "--persist", options->durable.mode,
         "Which committed segments are written to --cache-dir: write-through (all that have "
         "a name), on-demand (those of contexts that are saved) or off")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, PersistMode>{{"write-through", PersistMode::kWriteThrough},
                                             {"on-demand", PersistMode::kOnDemand},
                                             {"off", PersistMode::kOff}}))
      ->default_str("write-through");
  DiskLimits& limits = options->durable.limits;
  settings->AddByteSize("--cache-bytes", &limits.cap_bytes,
                        "Most that --cache-dir may take on disk; 0: no limit");
  settings->AddByteSize("--cache-tenant-bytes", &limits.tenant_quota_bytes,
                        "Most that the segments of one cache salt may take; 0: no limit");
  settings->AddDuration("--cache-ttl", &limits.idle_ttl,
                        "Segments that were not used for longer than this are removed, unless they "
                        "are of a pinned context; inf: never");
  app.add_option("--cache-high-watermark", limits.high_watermark,
                 "Share of --cache-bytes above which the least recently used segments are removed");
  app.add_option("--cache-low-watermark", limits.low_watermark,
                 "Share of --cache-bytes that is left then");
  app.add_option("--restore-threads", options->durable.restore_threads,
                 "Threads that read one segment back from --cache-dir")
      ->check(CLI::Range(1, 64));
  app.add_option("--free-slots-low", options->watermarks.low,
                 "Share of the block cache's slots that is kept free at least");
  app.add_option("--free-slots-high", options->watermarks.high,
                 "Share that is kept free at most, where steps take that many");
}

// Returns whether `signal` ends the service; does what another one asks for.
bool Ends(int signal) {
  if (signal != SIGHUP) return true;
  spdlog::info("SIGHUP: opening the log again");
  common::ReopenProcessLog();
  return false;
}

// Returns whether a signal has come that ends the service; waits up to `wait` for one.
bool EndSignalCame(absl::Duration wait) {
  const sigset_t signals = common::ServiceSignals();
  const timespec timeout = absl::ToTimespec(wait);
  const int signal = ::sigtimedwait(&signals, nullptr, &timeout);
  return signal > 0 && Ends(signal);
}

[[noreturn]] void EndNow() {
  common::FlushProcessLog();
  ::_exit(EXIT_SUCCESS);
}

// Starts the server. A disk can take its time then: a signal ends the process at once, which
// what is durable survives as it survives every other end.
absl::StatusOr<std::unique_ptr<StoreServer>> StartUnlessSignalled(
    const StoreServerOptions& options) {
  std::atomic<bool> started{false};
  std::thread watch([&started] {
    while (!started) {
      if (!EndSignalCame(absl::Milliseconds(20))) continue;
      spdlog::info("stopping while starting");
      EndNow();
    }
  });
  auto server = StoreServer::Start(options);
  started = true;
  watch.join();
  return server;
}

// Waits for a signal that ends the service, and feeds the watchdog meanwhile while the store's
// loops go on.
int AwaitEndSignal(StoreServer& server, const common::ServiceNotifier& notifier,
                   const std::string& serving) {
  const sigset_t signals = common::ServiceSignals();
  const timespec wait = absl::ToTimespec(
      std::clamp(notifier.watchdog_period() / 16, absl::Milliseconds(10), absl::Milliseconds(500)));
  while (true) {
    const int signal = notifier.watchdog_period() == absl::ZeroDuration()
                           ? ::sigwaitinfo(&signals, nullptr)
                           : ::sigtimedwait(&signals, nullptr, &wait);
    if (signal <= 0) {
      if (server.MadeProgress()) notifier.Feed();
      continue;
    }
    if (signal == SIGHUP) notifier.Reloading();
    if (Ends(signal)) return signal;
    notifier.Ready(serving);
  }
}

// What is durable needs no farewell: a disk that does not answer must not keep the process.
void EndAtLastAfter(unsigned seconds) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    static constexpr char kText[] =
        "kv_store_service: the disk does not answer, ending without it\n";
    (void)!::write(STDERR_FILENO, kText, sizeof(kText) - 1);
    ::_exit(EXIT_FAILURE);
  };
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(seconds);
}

int StopServer(StoreServer& server) {
  EndAtLastAfter(kStopTimeout);
  if (server.Stop(kCallsTimeout)) return EXIT_SUCCESS;
  spdlog::warn("some calls do not end, ending without them");
  EndNow();
}

int Fail(const absl::Status& status) {
  spdlog::critical("{}", std::string(status.message()));
  return common::ExitStatusOf(status);
}

// Gets the arena and serves until a signal; returns the exit status.
int Serve(StoreServer& server, const StoreServerOptions& options,
          const common::ServiceNotifier& notifier) {
  notifier.Progress(
      absl::StrCat("getting an arena of ", common::FormatByteSize(options.arena_bytes)),
      kLongestStep);
  const absl::Status obtained =
      server.ObtainArena([] { return EndSignalCame(absl::ZeroDuration()); });
  if (absl::IsCancelled(obtained)) {
    spdlog::info("{}", std::string(obtained.message()));
    notifier.Stopping("stopping while starting");
    return StopServer(server);
  }
  if (!obtained.ok()) return Fail(obtained);
  const std::string serving = absl::StrCat(
      "serving in ", server.socket_dir(),
      server.metrics_port() == 0 ? "" : absl::StrCat(", metrics on port ", server.metrics_port()));
  spdlog::info("{}", serving);
  notifier.Ready(serving);
  const int signal = AwaitEndSignal(server, notifier, serving);
  spdlog::info("stopping on signal {}", signal);
  notifier.Stopping("stopping");
  return StopServer(server);
}

}  // namespace

int StoreMain(int argc, char** argv, StoreServerOptions options) {
  options.socket_dir = common::DefaultSocketDir();
  options.metrics_address = "127.0.0.1:9402";
  common::Settings settings("Keeps the KV pages of one gpu_worker in shared memory.",
                            common::kBuildVersion);
  AddOptions(&settings, &options);
  common::LogOptions log;
  common::AddLogOptions(&settings, &log);
  // A worker beside this store may share its environment.
  settings.NameVariable("--listen", "RETROINFER_STORE_LISTEN");
  settings.NameVariable("--metrics-address", "RETROINFER_STORE_METRICS_ADDRESS");
  const auto outcome = settings.Parse(argc, argv);
  if (!outcome.ok()) {
    std::cerr << "kv_store_service: " << outcome.status().message() << "\n";
    return common::kExitRefusesSettings;
  }
  if (*outcome == common::Settings::Outcome::kExit) return EXIT_SUCCESS;
  if (options.metrics_address == "none") options.metrics_address.clear();

  KeepReadBuffers();
  const sigset_t signals = common::ServiceSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (const absl::Status status = common::StartProcessLog("kv_store_service", log); !status.ok()) {
    std::cerr << "kv_store_service: " << status.message() << "\n";
    return common::kExitRefusesSettings;
  }
  for (const std::string& warning : settings.warnings()) spdlog::warn("{}", warning);
  if (!options.listen.empty() && !common::IsLoopback(options.listen)) {
    spdlog::warn(
        "--listen {} lets other machines at the store, which asks for no key and speaks no TLS",
        options.listen);
  }
  const common::ServiceNotifier notifier = common::ServiceNotifier::FromEnvironment();
  notifier.Progress(
      absl::StrCat("opening ",
                   options.durable.folder.empty() ? options.socket_dir : options.durable.folder),
      kLongestStep);
  auto server = StartUnlessSignalled(options);
  return server.ok() ? Serve(**server, options, notifier) : Fail(server.status());
}

}  // namespace retroinfer::kvstore
