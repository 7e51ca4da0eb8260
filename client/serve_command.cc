#include <atomic>
#include <string>

#include "client/command_line.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/interrupt.h"
#include "client/number_format.h"
#include "client/serve_options.h"
#include "client/supervisor.h"
#include "common/build_info/build_info.h"

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
  Supervisor supervisor(
      "serve", ServiceSpecs(options), [&] { return signals.load(); }, streams);
  const absl::Status status = supervisor.Start();
  if (status.ok()) {
    PrintReady(options, streams);
    supervisor.Watch();
  }
  supervisor.Stop();
  if (status.ok() || absl::IsCancelled(status)) return kExitOk;
  return Fail(streams, "serve", std::string(status.message()), kExitFailed);
}

}  // namespace retroinfer::client
