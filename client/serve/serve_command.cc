#include <signal.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "client/command/number_format.h"
#include "client/command/server_registry.h"
#include "client/serve/serve_options.h"
#include "client/serve/supervisor.h"
#include "common/build_info/build_info.h"
#include "common/log/process_log.h"
#include "common/process/thread_limit.h"
#include "common/retrieval/retrieval_file.h"
#include "common/rpc/policy_name.h"
#include "common/service/service_notifier.h"
#include "common/shm/folder_lock.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

// Which budget wave has, and how to have one that was measured.
void LogRetrieval(const ServeOptions& options, const v1::GetModelInfoResponse& info) {
  const std::string& file = options.Passed("--retrieval");
  if (info.retrieval_budgets_size() > 0) {
    if (const auto budgets = common::ReadRetrievalFile(file); budgets.ok()) {
      spdlog::info("policy wave retrieves what {} says: {}", file,
                   common::DescribeBudgets(*budgets));
    }
    return;
  }
  const bool is_chosen = !options.Passed("--retrieval-ratio").empty() || file == "none" ||
                         info.load_format() == "dummy";
  if (is_chosen || info.default_attention().policy() != v1::ATTENTION_POLICY_WAVE) return;
  spdlog::info(
      "policy wave retrieves {:.3g} % of a context, which was not measured with this model: "
      "'retroinfer tune --model {} --text FILE' finds what your text needs",
      100 * info.default_attention().retrieval_ratio(), options.Passed("--model"));
}

void LogReady(const ServeOptions& options) {
  const auto connection = Connection::Open(
      {.address = WorkerAddress(options), .api_key_file = options.Passed("--api-key-file")});
  if (!connection.ok()) return;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  (*connection)->Prepare(&context);
  v1::GetModelInfoResponse info;
  if (!(*connection)->stub().GetModelInfo(&context, {}, &info).ok()) return;
  spdlog::info("{} is ready at {}", info.model_name(), ListenAddresses(options));
  if (HasGateway(options)) spdlog::info("OpenAI's HTTP API is at {}", options.Passed("--http"));
  std::string capacities;
  for (const auto& capacity : info.kv_capacities()) {
    absl::StrAppend(&capacities, WithThousands(capacity.tokens()),
                    capacities.empty() ? " tokens" : "", " with policy ",
                    common::NameOfPolicy(capacity.policy()), ", ");
  }
  spdlog::info("KV capacity: {}longest request {} tokens", capacities,
               WithThousands(info.max_model_len()));
  LogRetrieval(options, info);
}

// The folder for this `serve` alone. Services that somebody else runs there would be taken for its
// own by the health checks.
absl::StatusOr<common::FolderLock> TakeFolder(const std::string& folder) {
  RETURN_IF_ERROR(common::PrepareSocketFolder(folder));
  ASSIGN_OR_RETURN(common::FolderLock lock,
                   common::FolderLock::Take(folder, "serve", "retroinfer serve"));
  for (const char* role : {"kv_store", "gpu_worker"}) {
    if (const auto holder = common::FolderLock::Holder(folder, role)) {
      return absl::AlreadyExistsError(absl::StrCat(
          *holder, " uses ", folder, "; stop it first, or choose another --socket-dir"));
    }
  }
  return lock;
}

// For `retroinfer ps`, without which the server serves as well.
void NoteServer(const ServerRegistry& registry, const std::string& socket_dir) {
  if (const absl::Status status = registry.Add(socket_dir); !status.ok()) {
    spdlog::debug("'retroinfer ps' will need --socket-dir {}: {}", socket_dir,
                  std::string(status.message()));
  }
}

void Log(Supervisor::Severity severity, const std::string& message) {
  spdlog::log(severity == Supervisor::Severity::kInfo ? spdlog::level::info : spdlog::level::warn,
              "{}", message);
}

// What the supervisor grants its services at the end, and some more.
absl::Duration StopTime(const ServeOptions& options) {
  absl::Duration time = absl::Seconds(10) + options.drain_timeout;
  for (const ServiceSpec& spec : ServiceSpecs(options)) time += spec.stop_grace;
  return time;
}

// Starts the services and keeps them running until a signal.
absl::Status Supervise(const ServeOptions& options, InterruptWatcher& interrupts) {
  std::atomic<int> signals{interrupts.last_signal() == 0 ? 0 : 1};
  const common::ServiceNotifier notifier = common::ServiceNotifier::FromEnvironment();
  // The supervisor asks in every round of its loops, so it is what feeds the watchdog.
  const auto should_stop = [&] {
    notifier.Feed();
    return signals.load();
  };
  Supervisor supervisor(ServiceSpecs(options), should_stop, Log);
  interrupts.SetCallback([&](int signal) {
    if (signal == SIGHUP) {
      spdlog::info("SIGHUP: the services read their certificates and open their logs again");
      common::ReopenProcessLog();
      supervisor.Reload();
    } else if (++signals == 1) {
      spdlog::info("stopping; once more to end live answers now, a third time to kill");
    }
  });
  const std::string services = HasGateway(options) ? "kv_store_service, gpu_worker and http_gateway"
                                                   : "kv_store_service and gpu_worker";
  notifier.Status(absl::StrCat("starting ", services));
  absl::Status status = supervisor.Start();
  if (status.ok()) {
    LogReady(options);
    notifier.Ready(absl::StrCat("serving on ", ListenAddresses(options)));
    status = supervisor.Watch();
  }
  notifier.Stopping(absl::StrCat("stopping ", services));
  notifier.Progress(absl::StrCat("stopping ", services), StopTime(options));
  supervisor.Stop();
  interrupts.SetCallback([](int) {});
  return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

}  // namespace

int ServeCommand(int argc, const char* const* argv, const Streams& streams) {
  ServeOptions options;
  common::Settings settings(
      "Starts kv_store_service and gpu_worker on this machine, with --http also http_gateway, "
      "restarts what dies, and stops all on Ctrl-C or SIGTERM. SIGHUP makes them read their "
      "certificates and open their log files "
      "again.",
      common::kBuildVersion);
  AddServeOptions(&settings, &options);
  if (const auto done = ParseSilently(settings, argc, argv, streams)) return *done;
  absl::Status status = CheckServeOptions(&options);
  if (status.ok()) status = ChooseFreePorts(&options);
  if (!status.ok()) return Fail(streams, "serve", std::string(status.message()), kExitUsage);

  if (!common::ThreadsCanBeHad("retroinfer serve")) return kExitFailed;
  InterruptWatcher interrupts({SIGHUP});  // before there are other threads
  interrupts.SetCallback([](int) {});
  status = common::StartProcessLog("serve", options.log);
  if (!status.ok()) return Fail(streams, "serve", std::string(status.message()), kExitUsage);
  for (const std::string& warning : settings.warnings()) spdlog::warn("{}", warning);
  const auto folder = TakeFolder(options.socket_dir);
  const ServerRegistry registry;
  if (folder.ok()) NoteServer(registry, options.socket_dir);
  status = folder.ok() ? CheckPorts(options) : folder.status();
  if (status.ok()) status = Supervise(options, interrupts);
  registry.Remove();
  if (status.ok()) return kExitOk;
  spdlog::critical("{}", std::string(status.message()));
  // A service manager does not start it again then.
  const int exit_code = folder.ok() && absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
  // The log is elsewhere, and whoever started this looks here.
  if (!options.log.file.empty()) {
    Fail(streams, "serve", std::string(status.message()), exit_code);
  }
  return exit_code;
}

}  // namespace retroinfer::client
