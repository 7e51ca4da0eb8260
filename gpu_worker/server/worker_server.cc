#include "gpu_worker/server/worker_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/rpc/liveness.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr std::string_view kHealthPrefix = "/grpc.health.v1.Health/";
constexpr absl::Duration kLastWritesTime = absl::Seconds(5);
// gRPC's own shutdown also waits for idle connections, which clients close late.
constexpr absl::Duration kShutdownTime = absl::Milliseconds(100);
constexpr absl::Duration kLastBytesTime = absl::Seconds(1);

// Pings every 10 s and without calls are welcome: a client may wait long for a prefill.
void ConfigureKeepalive(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 9'000);
  // Finds clients that have gone without a word.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
}

absl::StatusOr<common::TlsFiles> TlsFilesOf(const ServerOptions& options) {
  const bool has_certificate = !options.tls_certificate_file.empty();
  const bool has_ca = !options.tls_client_ca_file.empty();
  if (has_certificate != !options.tls_key_file.empty() || (has_ca && !has_certificate)) {
    return absl::InvalidArgumentError(
        "TLS needs --tls-certificate and --tls-key together; --tls-client-ca needs both");
  }
  return common::TlsFiles{options.tls_certificate_file, options.tls_key_file,
                          options.tls_client_ca_file};
}

}  // namespace

WorkerServer::WorkerServer(const ServerOptions& options, common::Metrics& metrics)
    : options_(options),
      metrics_(metrics),
      recorder_(metrics),
      admission_(options.admission_threads),
      service_({&admission_, &sender_, &recorder_, options.max_pending_bytes,
                options.max_pending_bytes_total, options.keys, options.version, options.revision}),
      contexts_(options.keys) {}

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const ServerOptions& options,
                                                                  common::Metrics& metrics) {
  std::unique_ptr<WorkerServer> server(new WorkerServer(options, metrics));
  RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status WorkerServer::Listen() {
  if (options_.addresses.empty()) return absl::InvalidArgumentError("there is no address to serve");
  RETURN_IF_ERROR(OpenDoor());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.max_concurrent_streams);
  builder.SetMaxReceiveMessageSize(options_.max_message_bytes);
  builder.SetMaxSendMessageSize(options_.max_message_bytes);
  grpc::ResourceQuota quota("generation");
  quota.Resize(options_.grpc_memory_bytes);
  builder.SetResourceQuota(quota);
  ConfigureKeepalive(&builder);
  builder.RegisterService(&service_);
  builder.RegisterService(bounded_contexts_.get());
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr) return absl::InternalError("gRPC does not start");
  grpc_server_->GetHealthCheckService()->SetServingStatus(common::kLivenessService, true);
  SetServing(false);
  door_->Open(
      [server = grpc_server_.get()](int fd) { grpc::AddInsecureChannelFromFd(server, fd); });
  return absl::OkStatus();
}

absl::Status WorkerServer::OpenDoor() {
  common::DoorOptions door;
  door.addresses = options_.addresses;
  ASSIGN_OR_RETURN(door.tls, TlsFilesOf(options_));
  door.connections_max = options_.max_connections;
  door.limits.open_calls_max = options_.max_open_calls;
  door.limits.open_calls_per_connection_max = options_.max_concurrent_streams;
  door.policy.admit = [keys = options_.keys](const common::CallHead& call) {
    const bool is_health = call.path.substr(0, kHealthPrefix.size()) == kHealthPrefix;
    return is_health ? absl::OkStatus() : keys->ring()->Find(call.authorization).status();
  };
  door.policy.on_refused = [this](const absl::Status& status) { recorder_.OnRefused("", status); };
  ASSIGN_OR_RETURN(door_, common::Door::Listen(std::move(door)));
  door_metrics_ = std::make_unique<common::DoorMetrics>(*door_, metrics_, "gpu_worker");
  return absl::OkStatus();
}

WorkerServer::~WorkerServer() {
  monitor_.reset();
  if (grpc_server_ == nullptr) return;
  door_->StopAccepting();
  grpc_server_->Shutdown(std::chrono::system_clock::now());
  grpc_server_->Wait();
}

void WorkerServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = grpc_server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(generation::v1::GenerationService::service_full_name(), serving);
  health->SetServingStatus(generation::v1::ContextService::service_full_name(), serving);
}

void WorkerServer::Serve(const ServedModel* model, Engine* engine) {
  engine_ = engine;
  metrics_
      .Gauge("model_info", "The model that is served",
             {{"model", model->name},
              {"architecture", model->architecture},
              {"compute_dtype", model->compute_dtype},
              {"weights_dtype", model->weights_dtype}})
      .Set(1);
  const EngineLimits& limits = engine->limits();
  std::map<std::string, std::string> cache_config = {
      {"kv_dtype", model->kv_dtype},
      {"index_dtype", model->index_dtype},
      {"max_model_len", absl::StrCat(limits.max_model_len)}};
  for (size_t i = 0; i < kNumPolicies; ++i) {
    cache_config["capacity_tokens_" + std::string(kPolicyNames[i])] =
        absl::StrCat(limits.kv_capacity_tokens.tokens[i]);
  }
  metrics_.Gauge("cache_config_info", "Limits of the KV cache", cache_config).Set(1);
  service_.Serve(model, engine);
  contexts_.Serve(model, engine);
  monitor_ = std::make_unique<EngineMonitor>(*engine, metrics_, options_.statistics_interval,
                                             [this](bool ready) { SetServing(ready); });
}

void WorkerServer::Drain(absl::Duration grace) {
  const absl::Time deadline = common::SteadyNow() + grace;
  monitor_.reset();
  SetServing(false);
  service_.StartDraining();
  contexts_.StartDraining();
  if (engine_ != nullptr) {
    const int64_t live = engine_->stats().requests_running + engine_->stats().requests_waiting;
    spdlog::info("draining {} live requests for up to {}", live, absl::FormatDuration(grace));
    engine_->Drain(deadline);
  }
  service_.AwaitNoCalls(kLastWritesTime);
  door_->StopAccepting();
  grpc_server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownTime));
  grpc_server_->Wait();
  door_->AwaitEmpty(kLastBytesTime);
}

void WorkerServer::CutDrain() {
  if (engine_ != nullptr) engine_->Drain(common::SteadyNow());
}

}  // namespace retroinfer
