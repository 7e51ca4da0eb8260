#include "kv_store_service/server/store_main.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/build_info/build_info.h"
#include "common/config/settings.h"
#include "common/log/process_log.h"
#include "kv_store_service/persistence/payload_table.h"
#include "kv_store_service/server/store_server.h"

namespace retroinfer::kvstore {
namespace {

// Longer than DurableTierOptions::stop_timeout, shorter than what supervisors grant.
constexpr unsigned kStopTimeout = 8;

std::string DefaultSocketDir() {
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && *runtime_dir == '/') {
    return absl::StrCat(runtime_dir, "/retroinfer");
  }
  return absl::StrCat("/tmp/retroinfer-", ::geteuid());
}

void AddOptions(common::Settings* settings, StoreServerOptions* options) {
  CLI::App& app = settings->app();
  settings->AddByteSize("--arena-bytes", &options->arena_bytes,
                        "Size of the shared memory that holds the KV pages, allocated in full at "
                        "start");
  app.add_option("--socket-dir", options->socket_dir,
                 "Folder of mode 0700 for the sockets; made if it does not exist");
  app.add_option("--listen", options->listen,
                 "host:port for gRPC over TCP, besides the unix socket");
  app.add_option("--metrics-address", options->metrics_address,
                 "host:port of the Prometheus endpoint, or none");
  settings->AddDuration("--adopt-wait", &options->adopt_wait,
                        "After a restart: how long to wait for a live worker to hand the memory "
                        "back");
  app.add_option(
      "--cache-dir", options->durable.folder,
      "Folder of mode 0700 for durable segments; made if it does not exist; empty: none");
  app.add_option(
         "--persist", options->durable.mode,
         "Which committed segments are written to --cache-dir: write-through (all that have "
         "a name), on-demand (those of contexts that are saved) or off")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, PersistMode>{{"write-through", PersistMode::kWriteThrough},
                                             {"on-demand", PersistMode::kOnDemand},
                                             {"off", PersistMode::kOff}}));
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
                 "Share of free slots of the block cache below which pages are evicted");
  app.add_option("--free-slots-high", options->watermarks.high,
                 "Share of free slots that an eviction aims at");
}

// Signals that end the service; blocked in every thread and taken by sigtimedwait().
sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The same and SIGHUP, which asks to open the log file again.
sigset_t AllSignals() {
  sigset_t signals = EndSignals();
  sigaddset(&signals, SIGHUP);
  return signals;
}

// Returns whether `signal` ends the service; does what another one asks for.
bool Ends(int signal) {
  if (signal != SIGHUP) return true;
  spdlog::info("SIGHUP: opening the log again");
  common::ReopenProcessLog();
  return false;
}

// Waits up to 50 ms for a signal that ends the service.
bool EndSignalCame() {
  const sigset_t signals = AllSignals();
  const timespec timeout{0, 50'000'000};
  const int signal = ::sigtimedwait(&signals, nullptr, &timeout);
  return signal > 0 && Ends(signal);
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

int Fail(const absl::Status& status) {
  spdlog::critical("{}", std::string(status.message()));
  return EXIT_FAILURE;
}

}  // namespace

int StoreMain(int argc, char** argv, StoreServerOptions options) {
  options.socket_dir = DefaultSocketDir();
  options.metrics_address = "127.0.0.1:9402";
  common::Settings settings("Keeps the KV pages of one gpu_worker in shared memory.",
                            common::kBuildVersion);
  AddOptions(&settings, &options);
  common::LogOptions log;
  common::AddLogOptions(&settings, &log);
  const auto outcome = settings.Parse(argc, argv);
  if (!outcome.ok()) {
    std::cerr << "kv_store_service: " << outcome.status().message() << "\n";
    return 2;
  }
  if (*outcome == common::Settings::Outcome::kExit) return EXIT_SUCCESS;
  if (options.metrics_address == "none") options.metrics_address.clear();

  KeepReadBuffers();
  const sigset_t signals = AllSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (const absl::Status status = common::StartProcessLog("kv_store_service", log); !status.ok()) {
    std::cerr << "kv_store_service: " << status.message() << "\n";
    return 2;
  }
  auto server = StoreServer::Start(options);
  if (!server.ok()) return Fail(server.status());
  const absl::Status obtained = (*server)->ObtainArena(EndSignalCame);
  if (absl::IsCancelled(obtained)) return EXIT_SUCCESS;
  if (!obtained.ok()) return Fail(obtained);
  spdlog::info("serving in {}{}", options.socket_dir,
               (*server)->metrics_port() == 0
                   ? ""
                   : absl::StrCat(", metrics on port ", (*server)->metrics_port()));
  int signal = 0;
  do {
    ::sigwait(&signals, &signal);
  } while (!Ends(signal));
  spdlog::info("stopping on signal {}", signal);
  EndAtLastAfter(kStopTimeout);
  return EXIT_SUCCESS;
}

}  // namespace retroinfer::kvstore
