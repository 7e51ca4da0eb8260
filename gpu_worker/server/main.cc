// gpu_worker: owns the model and everything in device memory, and serves the generation API.
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "common/build_info/build_info.h"
#include "common/config/socket_dir.h"
#include "common/door/tls_certificates.h"
#include "common/log/log_metrics.h"
#include "common/log/process_log.h"
#include "common/metrics/metrics.h"
#include "common/process/descriptor_limit.h"
#include "common/process/exit_status.h"
#include "common/process/service_signals.h"
#include "common/process/standard_streams.h"
#include "common/process/thread_limit.h"
#include "common/service/service_notifier.h"
#include "common/shm/folder_lock.h"
#include "common/status/status_macros.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/rank_gpus.h"
#include "gpu_worker/assembly/served_engine.h"
#include "gpu_worker/server/device_metrics.h"
#include "gpu_worker/server/rank_main.h"
#include "gpu_worker/server/rank_metrics.h"
#include "gpu_worker/server/worker_options.h"
#include "gpu_worker/server/worker_server.h"

namespace retroinfer {
namespace {

// From the end of draining to the end of the process.
constexpr absl::Duration kFarewellTime = absl::Seconds(15);

// Returns whether `signal` ends the worker; does what another one asks for.
bool Ends(int signal) {
  if (signal != SIGHUP) return true;
  spdlog::info("SIGHUP: opening the log and reading certificates and tenants again");
  common::ReopenProcessLog();
  return false;
}

int Fail(const absl::Status& status) {
  spdlog::critical("{}", std::string(status.message()));
  return common::ExitStatusOf(status);
}

// The store takes one worker, and would let a second one wait without a word.
absl::StatusOr<common::FolderLock> TakeFolder(const std::string& folder) {
  RETURN_IF_ERROR(common::PrepareSocketFolder(folder));
  return common::FolderLock::Take(folder, "gpu_worker", "gpu_worker");
}

// The other processes that share the model; null if there are none.
absl::StatusOr<std::unique_ptr<OtherRanks>> StartRanks(const WorkerOptions& options,
                                                       const common::ServiceNotifier& notifier) {
  if (options.num_ranks == 1) return nullptr;
  RETURN_IF_ERROR(CheckGpusOfRanks(options, CudaGpuNames()));
  return OtherRanks::Start(options, notifier);
}

// Loads on another thread, so that a signal ends the worker meanwhile, too. Memory and the lease of
// the store are freed with the process.
absl::StatusOr<std::unique_ptr<ServedEngine>> LoadUnlessSignalled(
    const WorkerOptions& options, std::unique_ptr<OtherRanks> ranks, ComputeBackend backend,
    const common::ServiceNotifier& notifier) {
  absl::StatusOr<std::unique_ptr<ServedEngine>> served = absl::CancelledError("not loaded");
  absl::Notification loaded;
  std::thread loader([&] {
    served = LoadServedEngine(options, std::move(backend), notifier, std::move(ranks));
    loaded.Notify();
  });
  const sigset_t signals = common::ServiceSignals();
  while (!loaded.HasBeenNotified()) {
    const timespec timeout{0, 50'000'000};
    const int signal = ::sigtimedwait(&signals, nullptr, &timeout);
    if (signal > 0 && Ends(signal)) {
      spdlog::info("stopping while loading");
      notifier.Stopping("stopping while loading");
      common::FlushProcessLog();
      ::_exit(EXIT_SUCCESS);
    }
  }
  loader.join();
  return served;
}

// Drains on another thread, so that a second signal ends what is live meanwhile.
void DrainUntilSignalled(WorkerServer& server, absl::Duration timeout) {
  absl::Notification drained;
  std::thread drain([&] {
    server.Drain(timeout);
    drained.Notify();
  });
  const sigset_t signals = common::ServiceSignals();
  while (!drained.HasBeenNotified()) {
    const timespec poll{0, 20'000'000};
    const int signal = ::sigtimedwait(&signals, nullptr, &poll);
    if (signal <= 0 || !Ends(signal)) continue;
    spdlog::info("stopping at once on signal {}", signal);
    server.CutDrain();
  }
  drain.join();
}

// Does what SIGHUP asks for until a signal ends the worker, and returns that.
int AwaitEnd(WorkerServer& server, ServedEngine& served, const WorkerOptions& options,
             const common::ServiceNotifier& notifier, const std::string& serving) {
  const sigset_t signals = common::ServiceSignals();
  int signal = 0;
  while (true) {
    ::sigwait(&signals, &signal);
    if (signal == SIGHUP) {
      notifier.Reloading();
      server.ReloadCertificates();
      served.ReopenRankLogs();
      if (const absl::Status status = options.server.keys->Reload(); !status.ok()) {
        spdlog::error("the tenants stay as they were: {}", status.ToString());
      }
    }
    if (Ends(signal)) return signal;
    notifier.Ready(serving);
  }
}

// Each rank needs a device, all of one kind.
absl::Status CheckDevices(WorkerOptions options) {
  std::string first;
  if (options.num_ranks > 1) RETURN_IF_ERROR(CheckGpusOfRanks(options, CudaGpuNames()));
  for (options.rank = 0; options.rank < options.num_ranks; ++options.rank) {
    const absl::StatusOr<ComputeBackend> backend = CreateBackend(options);
    if (!backend.ok() && options.num_ranks == 1) return backend.status();
    if (!backend.ok()) {
      return absl::Status(backend.status().code(),
                          absl::StrCat("rank ", options.rank, " of --tensor-parallel ",
                                       options.num_ranks, ": ", backend.status().message()));
    }
    const DeviceInfo& device = backend->device->info();
    const std::string name = absl::StrCat(device.name, " (", device.backend, ")");
    if (options.rank == 0) first = name;
    if (name == first) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--tensor-parallel ", options.num_ranks, ": rank ", options.rank, " would compute on ",
        name, ", rank 0 on ", first, ": ranks need devices of one kind; see --device"));
  }
  return absl::OkStatus();
}

// Says what would keep a worker with these options from starting, without a model.
int CheckSettings(const WorkerOptions& options) {
  spdlog::set_level(spdlog::level::off);  // the worker itself will say what it computes on
  const ServerOptions& server = options.server;
  absl::Status status = common::TlsCertificates::Check(
      {server.tls_certificate_file, server.tls_key_file, server.tls_client_ca_file});
  if (status.ok()) status = CheckDevices(options);
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << "gpu_worker: " << status.message() << "\n";
  return common::ExitStatusOf(status);
}

// Rank 0, or the only one.
int Serve(const WorkerOptions& options) {
  const sigset_t signals = common::ServiceSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (const absl::Status status = common::StartProcessLog("gpu_worker", options.log);
      !status.ok()) {
    std::cerr << "gpu_worker: " << status.message() << "\n";
    return common::kExitRefusesSettings;
  }
  const common::ServiceNotifier notifier = common::ServiceNotifier::FromEnvironment();
  for (const std::string& warning : options.warnings) spdlog::warn("{}", warning);
  const auto folder = TakeFolder(common::SocketDirOf(options.store_socket_dir));
  if (!folder.ok()) return Fail(folder.status());
  auto ranks = StartRanks(options, notifier);
  if (!ranks.ok()) return Fail(ranks.status());
  auto backend = CreateBackend(options, *ranks == nullptr ? nullptr : &(*ranks)->memory());
  if (!backend.ok()) return Fail(backend.status());
  const Device* const compute = backend->device.get();  // which `served` will own
  const DeviceInfo& device = compute->info();
  spdlog::info("computing on {} ({}, {} MiB)", device.name, device.backend,
               device.memory_bytes >> 20);
  common::Metrics metrics("gpu_worker", common::kBuildVersion, common::kBuildRevision,
                          device.backend);
  metrics.SetRestarts(options.restarts);
  common::AddLogMetrics(&metrics, "gpu_worker");
  if (!options.metrics_address.empty()) {
    const absl::StatusOr<int> port = metrics.Serve(options.metrics_address);
    if (!port.ok()) return Fail(port.status());
    spdlog::info("metrics on port {}", *port);
  }
  auto server = WorkerServer::Start(options.server, metrics);
  if (!server.ok()) return Fail(server.status());
  auto served = LoadUnlessSignalled(options, *std::move(ranks), *std::move(backend), notifier);
  // What is wrong with a model, or said by a store, may be mended without other settings.
  if (!served.ok()) {
    Fail(served.status());
    return EXIT_FAILURE;
  }
  auto device_metrics = std::make_unique<DeviceMetrics>(*compute, metrics);
  std::unique_ptr<RankMetrics> rank_metrics;
  if (const RankGroup* const ranks = (*served)->ranks(); ranks != nullptr) {
    rank_metrics = std::make_unique<RankMetrics>(*ranks, metrics);
  }
  (*server)->Serve(&(*served)->model(), &(*served)->engine());
  const std::string serving = absl::StrCat("serving ", (*served)->model().name, " on ",
                                           absl::StrJoin((*server)->addresses(), ", "));
  spdlog::info("{}", serving);
  notifier.Ready(serving);

  const int signal = AwaitEnd(**server, **served, options, notifier, serving);
  spdlog::info("stopping on signal {}", signal);
  notifier.Stopping("draining");
  notifier.Progress("draining", options.drain_timeout + kFarewellTime);
  DrainUntilSignalled(**server, options.drain_timeout);
  server->reset();
  device_metrics.reset();
  rank_metrics.reset();
  served->reset();
  spdlog::info("stopped");
  return EXIT_SUCCESS;
}

int Run(int argc, char** argv) {
  WorkerOptions options;
  const absl::StatusOr<std::optional<int>> rank = TakeRank(&argc, argv);
  const absl::StatusOr<bool> run =
      rank.ok() ? ParseWorkerOptions(argc, argv, &options) : rank.status();
  if (!run.ok()) {
    std::cerr << "gpu_worker: " << run.status().message() << "\n";
    return common::kExitRefusesSettings;
  }
  if (!*run) return EXIT_SUCCESS;
  if (options.checks_only) return CheckSettings(options);
  options.rank = rank->value_or(0);
  if (options.rank > 0) return RunRank(options);
  options.rank_program = RankProgram(argc, argv);
  return Serve(options);
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  retroinfer::common::OpenStandardStreams();
  if (!retroinfer::common::RaiseDescriptorLimitOf("gpu_worker")) return 1;
  if (!retroinfer::common::ThreadsCanBeHad("gpu_worker")) return 1;
  return retroinfer::Run(argc, argv);
}
