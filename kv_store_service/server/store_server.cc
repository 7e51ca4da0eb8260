#include "kv_store_service/server/store_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/build_info/build_info.h"
#include "common/clock/steady_now.h"
#include "common/config/byte_size.h"
#include "common/config/socket_dir.h"
#include "common/log/log_metrics.h"
#include "common/memory/available_memory.h"
#include "common/process/start_thread.h"
#include "common/rpc/liveness.h"
#include "common/shm/folder_lock.h"
#include "common/shm/worker_mark.h"
#include "common/status/status_macros.h"
#include "kv_store_service/server/allocation_log.h"

namespace retroinfer::kvstore {
namespace {

constexpr char kControlSocket[] = "kv_store.sock";
constexpr char kDescriptorSocket[] = "kv_store_fd.sock";
constexpr char kStateFileName[] = "kv_store.state";
constexpr char kLockRole[] = "kv_store";
constexpr size_t kSocketPathMax = 107;
constexpr int kMessageBytesMax = 64 << 20;
constexpr auto kCallsMayTake = std::chrono::milliseconds(500);  // once the store stops
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
constexpr int kCallsOfConnectionMax = 64;
constexpr int kCallsMax = 512;
constexpr int kConnectionsMax = 128;
constexpr int kUnansweredMax = 32;  // calls; each connection may add one
constexpr int kThreadsMax = 256;  // each call has one; more than kUnansweredMax and kConnectionsMax
constexpr uint64_t kArenaBytesMin = 1 << 20;
constexpr uint64_t kArenaAlignment = 4096;

absl::Status RequireSocketPath(const std::string& path) {
  if (path.size() <= kSocketPathMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                 " bytes, the system allows ", kSocketPathMax,
                                                 "; choose a shorter --socket-dir"));
}

absl::Status CannotUseCache(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("--cache-dir cannot be used: ", status.message(),
                   "; --cache-optional makes the service start without durable contexts then"));
}

absl::Status RequireRoomForArena(uint64_t bytes) {
  absl::Status status =
      common::RequireAvailableMemory(bytes, absl::StrCat("the arena (--arena-bytes)"));
  if (status.ok()) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      std::string(status.message()), "; choose a smaller --arena-bytes or free memory"));
}

absl::Status CheckLimits(const DiskLimits& limits) {
  if (!(limits.low_watermark > 0 && limits.low_watermark <= limits.high_watermark &&
        limits.high_watermark <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--cache-low-watermark is ", limits.low_watermark, " and --cache-high-watermark ",
        limits.high_watermark, ", needs 0 < low <= high <= 1"));
  }
  if (limits.idle_ttl > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--cache-ttl is ", absl::FormatDuration(limits.idle_ttl), ", needs more than 0"));
}

// Limits of a control plane that carries a few calls a second.
void ConfigureLimits(grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("kv_store_service");
  quota.SetMaxThreads(kThreadsMax);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kMessageBytesMax);
  builder->SetMaxSendMessageSize(kMessageBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsOfConnectionMax);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

StoreServer::StoreServer(const StoreServerOptions& options)
    : options_(options), socket_dir_(common::SocketDirOf(options.socket_dir)) {}

StoreServer::~StoreServer() {
  Stop(absl::InfiniteDuration());
  // Destroying the members closes the worker's lease without freeing anything: the state file
  // stays, so that the next store waits for the worker.
}

bool StoreServer::Stop(absl::Duration timeout) {
  const absl::Time deadline = common::SteadyNow() + timeout;
  if (grpc_server_ != nullptr && !call_ender_.joinable()) {
    grpc_server_->GetHealthCheckService()->SetServingStatus(false);
    // Most calls take milliseconds, but a client may read slowly or not at all, and checking or
    // importing a context takes long: none of them may delay the end of the disk tier.
    if (door_ != nullptr) door_->StopAccepting();
    const auto end_calls = [this] {
      grpc_server_->Shutdown(std::chrono::system_clock::now() + kCallsMayTake);
      calls_ended_.Notify();
    };
    absl::StatusOr<std::thread> ender = common::StartThread(end_calls);
    if (!ender.ok()) return false;  // they end with the process
    call_ender_ = *std::move(ender);
  }
  if (store_ != nullptr && store_->tier() != nullptr) store_->tier()->Close();
  if (!call_ender_.joinable()) return true;
  if (!calls_ended_.WaitForNotificationWithDeadline(deadline)) return false;
  call_ender_.join();
  grpc_server_.reset();
  return true;
}

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(const StoreServerOptions& options) {
  std::unique_ptr<StoreServer> server(new StoreServer(options));
  RETURN_IF_ERROR(server->Initialize());
  return server;
}

absl::Status StoreServer::Initialize() {
  if (options_.arena_bytes < kArenaBytesMin || options_.arena_bytes % kArenaAlignment != 0 ||
      options_.arena_bytes / kPageBytes >= kNoPage) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--arena-bytes is ", options_.arena_bytes, ", needs a multiple of ", kArenaAlignment,
        " from ", kArenaBytesMin, " to ", (uint64_t{kNoPage} - 2) * kPageBytes));
  }
  const Watermarks& watermarks = options_.watermarks;
  if (!(watermarks.low >= 0 && watermarks.low <= watermarks.high && watermarks.high <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("the watermarks are ", watermarks.low, " and ",
                                                   watermarks.high,
                                                   ", needs 0 <= low <= high <= 1"));
  }
  RETURN_IF_ERROR(CheckLimits(options_.durable.limits));
  RETURN_IF_ERROR(PrepareFolder());
  StateFile state_file(PathOf(kStateFileName));
  const std::optional<StateNote> note = state_file.Read();
  adopts_ = note.has_value() && state_file.HolderLives(*note);
  RETURN_IF_ERROR(common::WorkerMark::Make(socket_dir_));
  if (!adopts_) {
    state_file.Remove();
    RETURN_IF_ERROR(RequireRoomForArena(options_.arena_bytes));
  }
  KvStore::Options store_options;
  store_options.watermarks = watermarks;
  store_options.worker_lives = [folder = socket_dir_](const std::string& token) {
    return common::WorkerMark::IsHeld(folder, common::WorkerMark::PlaceOf(token)).value_or(false);
  };
  store_ = std::make_unique<KvStore>(store_options, std::move(state_file));
  RETURN_IF_ERROR(OpenDurableTier());
  if (adopts_) store_->leases().AwaitAdoption(*note);
  metrics_ = std::make_unique<common::Metrics>("kv_store_service", common::kBuildVersion,
                                               common::kBuildRevision, "cpu");
  metrics_->SetRestarts(options_.restarts);
  common::AddLogMetrics(metrics_.get(), "kv_store_service");
  store_metrics_ = std::make_unique<StoreMetrics>(metrics_.get(), store_.get());
  if (!options_.metrics_address.empty()) {
    ASSIGN_OR_RETURN(metrics_port_, metrics_->Serve(options_.metrics_address));
  }
  ASSIGN_OR_RETURN(descriptor_server_,
                   DescriptorServer::Start(PathOf(kDescriptorSocket), store_.get(), {}));
  return StartGrpc();
}

absl::Status StoreServer::OpenDurableTier() {
  if (options_.durable.folder.empty() || options_.durable.mode == PersistMode::kOff) {
    return absl::OkStatus();
  }
  KvStore* const store = store_.get();
  auto tier = DurableTier::Open(options_.durable, [store](const SegmentName& name) {
    return store->context_segments().IsReferenced(name);
  });
  if (!tier.ok()) {
    const bool goes_on =
        options_.durable_optional || adopts_ || absl::IsResourceExhausted(tier.status());
    if (!goes_on) return CannotUseCache(tier.status());
    spdlog::error("no durable segments, the service goes on without them until it is restarted: {}",
                  std::string(tier.status().message()));
    store_->NoteMissingTier(tier.status());
    return absl::OkStatus();
  }
  const StorageStats stats = (*tier)->stats().storage;
  spdlog::info("durable segments in {}: {} segments, {}", options_.durable.folder, stats.segments,
               common::FormatByteSize(stats.physical_bytes));
  store_->SetDurableTier(*std::move(tier));
  return absl::OkStatus();
}

absl::Status StoreServer::PrepareFolder() {
  RETURN_IF_ERROR(RequireSocketPath(PathOf(kDescriptorSocket)));
  RETURN_IF_ERROR(common::PrepareSocketFolder(socket_dir_));
  ASSIGN_OR_RETURN(lock_, common::FolderLock::Take(socket_dir_, kLockRole, "kv_store_service"));
  return absl::OkStatus();
}

absl::Status StoreServer::OpenDoor() {
  common::DoorOptions door;
  door.addresses = {common::kUnixScheme + PathOf(kControlSocket)};
  if (!options_.listen.empty()) door.addresses.push_back(options_.listen);
  door.connections_max = kConnectionsMax;
  door.limits.open_calls_max = kCallsMax;
  door.limits.open_calls_per_connection_max = kCallsOfConnectionMax;
  door.limits.unanswered_calls_max = kUnansweredMax;
  ASSIGN_OR_RETURN(door_, common::Door::Listen(std::move(door)));
  door_metrics_ = std::make_unique<common::DoorMetrics>(*door_, *metrics_, "kv_store_service");
  door_->Open(
      [server = grpc_server_.get()](int fd) { grpc::AddInsecureChannelFromFd(server, fd); });
  return absl::OkStatus();
}

absl::Status StoreServer::StartGrpc() {
  rpc_ = std::make_unique<KvStoreRpc>(store_.get(), PathOf(kDescriptorSocket));
  contexts_ = std::make_unique<Contexts>(store_.get());
  context_rpc_ = std::make_unique<ContextRpc>(contexts_.get());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureLimits(&builder);
  bounded_rpc_ = rpc_->Bounded();
  bounded_context_rpc_ = context_rpc_->Bounded();
  builder.RegisterService(bounded_rpc_.get());
  builder.RegisterService(bounded_context_rpc_.get());
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr) return absl::InternalError("gRPC does not start");
  grpc_server_->GetHealthCheckService()->SetServingStatus(false);
  grpc_server_->GetHealthCheckService()->SetServingStatus(common::kLivenessService, true);
  return OpenDoor();
}

absl::Status StoreServer::ObtainArena(const std::function<bool()>& should_stop) {
  if (adopts_) {
    spdlog::info("waiting up to {} for the worker that holds the memory of an earlier store",
                 absl::FormatDuration(options_.adopt_wait));
    const absl::Time deadline = common::SteadyNow() + options_.adopt_wait;
    ArenaLeases::Adoption adoption;
    while ((adoption = store_->leases().PollAdoption(deadline)) ==
           ArenaLeases::Adoption::kPending) {
      if (should_stop()) return absl::CancelledError("stopped while waiting for a worker");
      absl::SleepFor(kPollInterval);
    }
    adopts_ = adoption == ArenaLeases::Adoption::kAdopted;
    if (!adopts_) spdlog::info("no worker came");
  }
  if (!adopts_) RETURN_IF_ERROR(AllocateArena(should_stop));
  grpc_server_->GetHealthCheckService()->SetServingStatus(true);
  grpc_server_->GetHealthCheckService()->SetServingStatus(v1::KvStoreService::service_full_name(),
                                                          true);
  return absl::OkStatus();
}

absl::Status StoreServer::AllocateArena(const std::function<bool()>& should_stop) {
  RETURN_IF_ERROR(RequireRoomForArena(options_.arena_bytes));
  const int threads = options_.allocation_threads > 0
                          ? options_.allocation_threads
                          : static_cast<int>(std::thread::hardware_concurrency());
  const absl::Time begin = common::SteadyNow();
  common::AllocationWatch watch;
  AllocationLog log(options_.arena_bytes, begin);
  absl::Notification done;
  absl::StatusOr<common::SealedMemory> arena;
  std::thread allocation([&] {
    arena = common::SealedMemory::Create("retroinfer arena", options_.arena_bytes, threads, &watch);
    done.Notify();
  });
  while (!done.WaitForNotificationWithTimeout(kPollInterval)) {
    if (should_stop()) watch.stop = true;
    const uint64_t halves = watch.done_bytes;
    const auto percent =
        static_cast<int>(halves * 50 / std::max<uint64_t>(options_.arena_bytes, 1));
    if (const auto line = log.Due(percent, common::SteadyNow())) spdlog::info("{}", *line);
  }
  allocation.join();
  RETURN_IF_ERROR(arena.status());
  spdlog::info(
      "allocated an arena of {} in {}", common::FormatByteSize(options_.arena_bytes),
      absl::FormatDuration(absl::Trunc(common::SteadyNow() - begin, absl::Milliseconds(1))));
  store_->leases().SetArena(*std::move(arena));
  return absl::OkStatus();
}

bool StoreServer::MadeProgress() {
  const std::optional<std::vector<uint64_t>> rounds = store_->leases().data_plane_rounds();
  const std::optional<std::vector<uint64_t>> seen = std::exchange(rounds_seen_, rounds);
  if (!rounds.has_value() || !seen.has_value() || rounds->size() != seen->size()) return true;
  for (size_t rank = 0; rank < rounds->size(); ++rank) {
    if ((*rounds)[rank] == (*seen)[rank]) return false;
  }
  return true;
}

}  // namespace retroinfer::kvstore
