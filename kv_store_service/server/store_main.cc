#include "kv_store_service/server/store_main.h"

#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/build_info/build_info.h"
#include "common/config/settings.h"
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
                 "host:port of the Prometheus endpoint; empty: none");
  settings->AddDuration("--adopt-wait", &options->adopt_wait,
                        "After a restart: how long to wait for a live worker to hand the memory "
                        "back");
  app.add_option(
      "--cache-dir", options->durable.folder,
      "Folder of mode 0700 for durable segments; made if it does not exist; empty: none");
  app.add_option(
         "--persist", options->durable.mode,
         "Which committed segments are written to --cache-dir: write-through (all that have "
         "a name) or off")
      ->transform(CLI::CheckedTransformer(std::map<std::string, PersistMode>{
          {"write-through", PersistMode::kWriteThrough}, {"off", PersistMode::kOff}}));
  settings->AddByteSize("--cache-bytes", &options->durable.cap_bytes,
                        "Most that --cache-dir may take on disk; 0: no limit");
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

// Waits up to 50 ms for a signal that ends the service.
bool EndSignalCame() {
  const sigset_t signals = EndSignals();
  const timespec timeout{0, 50'000'000};
  return ::sigtimedwait(&signals, nullptr, &timeout) > 0;
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
  const auto outcome = settings.Parse(argc, argv);
  if (!outcome.ok()) {
    std::cerr << "kv_store_service: " << outcome.status().message() << "\n";
    return 2;
  }
  if (*outcome == common::Settings::Outcome::kExit) return EXIT_SUCCESS;

  KeepReadBuffers();
  spdlog::set_default_logger(spdlog::stderr_color_mt("kv_store_service"));
  spdlog::flush_on(spdlog::level::trace);
  const sigset_t signals = EndSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
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
  ::sigwait(&signals, &signal);
  spdlog::info("stopping on signal {}", signal);
  EndAtLastAfter(kStopTimeout);
  return EXIT_SUCCESS;
}

}  // namespace retroinfer::kvstore
