#include "gpu_worker/server/worker_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/liveness.h"
#include "common/status/status_macros.h"
#include "gpu_worker/server/server_credentials.h"

namespace retroinfer {
namespace {

constexpr char kUnixScheme[] = "unix:";
constexpr absl::Duration kLastWritesTime = absl::Seconds(5);
// gRPC's own shutdown also waits for idle connections, which clients close late.
constexpr absl::Duration kShutdownTime = absl::Milliseconds(100);

// Pings every 10 s and without calls are welcome: a client may wait long for a prefill.
void ConfigureKeepalive(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 9'000);
  // Finds clients that have gone without a word.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
}

// gRPC would take over the socket of a live server.
absl::Status RequireUnusedSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/' || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path '", path,
                                                   "' must be absolute and shorter than ",
                                                   sizeof(address.sun_path), " bytes"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::OkStatus();
  const bool used = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  ::close(fd);
  if (!used) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("another server listens on ", path));
}

// gRPC would take a port modulo 65536.
absl::Status RequirePort(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon > 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the address '", address,
                   "' must be host:port with a port of 0 to 65535, or unix: and a path"));
}

// Leaves reflection out of one server; linking it turns it on for all.
class WithoutReflection : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const auto is_reflection = [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
      return absl::StrContains(plugin->name(), "reflection");
    };
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(), is_reflection), plugins->end());
  }
};

// "host:0" with the port that was taken.
std::string WithPort(const std::string& address, int port) {
  if (absl::StartsWith(address, kUnixScheme)) return address;
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

}  // namespace

WorkerServer::WorkerServer(const ServerOptions& options, common::Metrics& metrics)
    : options_(options),
      metrics_(metrics),
      recorder_(metrics),
      admission_(options.admission_threads),
      service_({&admission_, &sender_, &recorder_, options.max_pending_bytes, options.api_key,
                options.version, options.revision}),
      contexts_(options.api_key) {}

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const ServerOptions& options,
                                                                  common::Metrics& metrics) {
  std::unique_ptr<WorkerServer> server(new WorkerServer(options, metrics));
  RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status WorkerServer::Listen() {
  if (options_.addresses.empty()) return absl::InvalidArgumentError("there is no address to serve");
  ASSIGN_OR_RETURN(const auto credentials, MakeServerCredentials(options_));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  if (!options_.api_key.empty()) builder.SetOption(std::make_unique<WithoutReflection>());
  std::vector<int> ports(options_.addresses.size(), 0);
  for (size_t i = 0; i < options_.addresses.size(); ++i) {
    const std::string& address = options_.addresses[i];
    if (absl::StartsWith(address, kUnixScheme)) {
      RETURN_IF_ERROR(RequireUnusedSocket(std::string(absl::StripPrefix(address, kUnixScheme))));
    } else {
      RETURN_IF_ERROR(RequirePort(address));
    }
    const bool is_unix = absl::StartsWith(address, kUnixScheme);
    builder.AddListeningPort(address, is_unix ? grpc::InsecureServerCredentials() : credentials,
                             &ports[i]);
  }
  // gRPC would let a second process listen on the same port and share its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.max_concurrent_streams);
  builder.SetMaxReceiveMessageSize(options_.max_message_bytes);
  builder.SetMaxSendMessageSize(options_.max_message_bytes);
  grpc::ResourceQuota quota("generation");
  quota.Resize(options_.grpc_memory_bytes);
  builder.SetResourceQuota(quota);
  ConfigureKeepalive(&builder);
  builder.RegisterService(&service_);
  builder.RegisterService(&contexts_);
  grpc_server_ = builder.BuildAndStart();
  for (size_t i = 0; i < ports.size(); ++i) {
    if (grpc_server_ != nullptr && ports[i] != 0) {
      addresses_.push_back(WithPort(options_.addresses[i], ports[i]));
      continue;
    }
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.addresses[i],
                                               ": the address is taken or not valid"));
  }
  grpc_server_->GetHealthCheckService()->SetServingStatus(common::kLivenessService, true);
  SetServing(false);
  return absl::OkStatus();
}

WorkerServer::~WorkerServer() {
  monitor_.reset();
  if (grpc_server_ == nullptr) return;
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
              {"compute_dtype", model->compute_dtype}})
      .Set(1);
  const EngineLimits& limits = engine->limits();
  metrics_
      .Gauge("cache_config_info", "Limits of the KV cache",
             {{"kv_dtype", model->kv_dtype},
              {"max_model_len", absl::StrCat(limits.max_model_len)},
              {"capacity_tokens_full", absl::StrCat(limits.kv_capacity_tokens_full)},
              {"capacity_tokens_wave", absl::StrCat(limits.kv_capacity_tokens_wave)}})
      .Set(1);
  service_.Serve(model, engine);
  contexts_.Serve(model, engine);
  monitor_ = std::make_unique<EngineMonitor>(*engine, metrics_, options_.statistics_interval,
                                             [this](bool ready) { SetServing(ready); });
}

void WorkerServer::Drain(absl::Duration grace) {
  const absl::Time deadline = absl::Now() + grace;
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
  grpc_server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownTime));
  grpc_server_->Wait();
}

}  // namespace retroinfer
