#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/command_line.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/interrupt.h"
#include "client/number_format.h"
#include "client/serve_options.h"
#include "client/supervisor.h"
#include "common/build_info/build_info.h"
#include "common/service/service_notifier.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

void PrintReady(const ServeOptions& options, const Streams& streams) {
  const auto connection = Connection::Open(
      {.address = WorkerAddress(options), .api_key_file = options.Passed("--api-key-file")});
  if (!connection.ok()) return;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  (*connection)->Prepare(&context);
  v1::GetModelInfoResponse info;
  if (!(*connection)->stub().GetModelInfo(&context, {}, &info).ok()) return;
  std::fprintf(streams.err,
               "retroinfer serve: %s is ready at %s\n"
               "retroinfer serve: KV capacity: %s tokens with policy wave, %s with policy full; "
               "longest request %s tokens\n",
               info.model_name().c_str(), ListenAddresses(options).c_str(),
               WithThousands(info.kv_capacity_tokens_wave()).c_str(),
               WithThousands(info.kv_capacity_tokens_full()).c_str(),
               WithThousands(info.max_model_len()).c_str());
  std::fflush(streams.err);
}

// What the supervisor grants its services at the end, and some more.
absl::Duration StopTime(const ServeOptions& options) {
  absl::Duration time = absl::Seconds(10);
  for (const ServiceSpec& spec : ServiceSpecs(options)) time += spec.stop_grace;
  return time;
}

}  // namespace

int ServeCommand(int argc, const char* const* argv, const Streams& streams) {
  ServeOptions options;
  common::Settings settings(
      "Starts kv_store_service and gpu_worker on this machine, restarts what dies, and stops both "
      "on Ctrl-C or SIGTERM.",
      common::kBuildVersion);
  AddServeOptions(&settings, &options);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  if (const absl::Status status = CheckServeOptions(&options); !status.ok()) {
    return Fail(streams, "serve", std::string(status.message()), kExitUsage);
  }

  InterruptWatcher interrupts;  // before gRPC has threads
  std::atomic<int> signals{0};
  interrupts.SetCallback([&](int) {
    if (++signals == 1) {
      std::fprintf(streams.err, "retroinfer serve: stopping; once more to stop at once\n");
    }
  });
  const common::ServiceNotifier notifier = common::ServiceNotifier::FromEnvironment();
  // The supervisor asks in every round of its loops, so it is what feeds the watchdog.
  const auto should_stop = [&] {
    notifier.Feed();
    return signals.load();
  };
  Supervisor supervisor("serve", ServiceSpecs(options), should_stop, streams);
  notifier.Status("starting kv_store_service and gpu_worker");
  const absl::Status status = supervisor.Start();
  if (status.ok()) {
    PrintReady(options, streams);
    notifier.Ready(absl::StrCat("serving on ", ListenAddresses(options)));
    supervisor.Watch();
  }
  notifier.Stopping("stopping gpu_worker and kv_store_service");
  notifier.Progress("stopping gpu_worker and kv_store_service", StopTime(options));
  supervisor.Stop();
  if (status.ok() || absl::IsCancelled(status)) return kExitOk;
  return Fail(streams, "serve", std::string(status.message()), kExitFailed);
}

}  // namespace retroinfer::client
