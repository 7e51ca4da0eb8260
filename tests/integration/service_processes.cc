#include "tests/integration/service_processes.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "build_paths.h"
#include "client/serve/health_probe.h"
#include "common/log/check.h"
#include "tests/support/http_get.h"

namespace retroinfer::test_support {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);
constexpr char kAnyPort[] = "127.0.0.1:0";
constexpr absl::Duration kCallTimeout = absl::Seconds(10);

[[noreturn]] void Die(const std::string& what, const std::string& log) {
  std::fprintf(stderr, "%s\n%s\n", what.c_str(), log.c_str());
  std::abort();
}

std::shared_ptr<grpc::Channel> Channel(const std::string& path) {
  grpc::ChannelArguments arguments;
  // A connection of its own, which finds a restarted server soon.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
}

// The port that a service told in its log when it was last started.
int MetricsPort(const std::string& log) {
  constexpr std::string_view kWords = "metrics on port ";
  const size_t found = log.rfind(kWords);
  if (found == std::string::npos) Die("a service tells no port of its metrics", log);
  return std::atoi(log.c_str() + found + kWords.size());
}

std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  context->set_wait_for_ready(true);
  return context;
}

}  // namespace

std::string ServiceProgram(const std::string& name) {
  const char* const folder = std::getenv("RETROINFER_BIN_DIR");
  return absl::StrCat(folder == nullptr ? RETROINFER_BINARY_DIR "/bin" : folder, "/", name);
}

std::string TestDevice() {
  const char* const device = std::getenv("RETROINFER_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}

ServiceProcesses::ServiceProcesses(ServiceOptions options) : options_(std::move(options)) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  RI_CHECK(::mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
}

ServiceProcesses::~ServiceProcesses() {
  worker_.reset();
  store_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void ServiceProcesses::LaunchStore() {
  std::vector<std::string> arguments = options_.store_program;
  arguments.insert(arguments.end(), {"--socket-dir", folder_.string(), "--arena-bytes",
                                     options_.arena_bytes, "--metrics-address", kAnyPort});
  arguments.insert(arguments.end(), options_.store_arguments.begin(),
                   options_.store_arguments.end());
  store_.reset();
  store_ = std::make_unique<ChildProcess>(arguments, PathOf("store.log"));
  store_stub_ = NewStoreStub();
}

void ServiceProcesses::StartStore() {
  LaunchStore();
  if (!Eventually([this] { return StoreIsServing(); }, kStartTimeout)) {
    Die("the store does not serve", store_->Log());
  }
}

std::vector<std::string> ServiceProcesses::WorkerArguments(const std::string& name) const {
  return {ServiceProgram("gpu_worker"),
          "--model",
          options_.model_folder,
          "--socket-dir",
          folder_.string(),
          "--listen",
          "unix:" + PathOf(name + ".sock"),
          "--metrics-address",
          kAnyPort,
          "--device",
          options_.device,
          "--memory",
          options_.memory};
}

void ServiceProcesses::LaunchWorker() {
  std::vector<std::string> arguments = WorkerArguments("worker");
  arguments.insert(arguments.end(), options_.worker_arguments.begin(),
                   options_.worker_arguments.end());
  worker_.reset();
  worker_ = std::make_unique<ChildProcess>(arguments, PathOf("worker.log"));
  worker_stub_ = NewWorkerStub();
}

void ServiceProcesses::StartWorker() {
  LaunchWorker();
  if (!Eventually([this] { return WorkerIsServing(); }, kStartTimeout)) {
    Die("the worker does not serve", worker_->Log());
  }
}

std::unique_ptr<ChildProcess> ServiceProcesses::StartOtherWorker(
    const std::string& name, const std::vector<std::string>& extra) {
  const std::vector<std::string> usual = WorkerArguments(name);
  std::vector<std::string> arguments = {usual[0]};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  for (size_t i = 1; i + 1 < usual.size(); i += 2) {
    if (std::find(extra.begin(), extra.end(), usual[i]) != extra.end()) continue;
    arguments.insert(arguments.end(), {usual[i], usual[i + 1]});
  }
  return std::make_unique<ChildProcess>(arguments, PathOf(name + ".log"));
}

std::string ServiceProcesses::LogOf(const std::string& name) const {
  std::stringstream text;
  text << std::ifstream(folder_ / (name + ".log")).rdbuf();
  return text.str();
}

std::unique_ptr<generation::v1::GenerationService::Stub> ServiceProcesses::NewWorkerStub() const {
  return generation::v1::GenerationService::NewStub(Channel(PathOf("worker.sock")));
}

std::unique_ptr<kvstore::v1::KvStoreService::Stub> ServiceProcesses::NewStoreStub() const {
  return kvstore::v1::KvStoreService::NewStub(Channel(PathOf("kv_store.sock")));
}

bool ServiceProcesses::WorkerIsServing() {
  return client::HealthProbe("unix:" + PathOf("worker.sock")).IsServing(absl::Seconds(1));
}

bool ServiceProcesses::StoreIsServing() {
  return client::HealthProbe("unix:" + PathOf("kv_store.sock")).IsServing(absl::Seconds(1));
}

generation::v1::GetModelInfoResponse ServiceProcesses::ModelInfo() {
  generation::v1::GetModelInfoResponse response;
  const grpc::Status status = worker_stub_->GetModelInfo(Context().get(), {}, &response);
  if (!status.ok()) Die("GetModelInfo: " + status.error_message(), worker_->Log());
  return response;
}

DeviceInfo ServiceProcesses::WorkerDevice() {
  const generation::v1::GetModelInfoResponse info = ModelInfo();
  return {.name = info.device_name(), .backend = info.backend()};
}

kvstore::v1::GetStatsResponse ServiceProcesses::StoreStats() {
  kvstore::v1::GetStatsResponse response;
  const grpc::Status status = store_stub_->GetStats(Context().get(), {}, &response);
  if (!status.ok()) Die("GetStats: " + status.error_message(), store_->Log());
  return response;
}

std::string ServiceProcesses::WorkerMetrics() const {
  return HttpGet(MetricsPort(worker_->Log()), "/metrics");
}

std::string ServiceProcesses::StoreMetrics() const {
  return HttpGet(MetricsPort(store_->Log()), "/metrics");
}

std::string ServiceProcesses::WhatIsHeld() {
  std::string held;
  const auto expect = [&held](const char* name, uint64_t value, uint64_t want = 0) {
    if (value != want) absl::StrAppend(&held, name, " ", value, ", not ", want, "; ");
  };
  const generation::v1::WorkerStats worker = ModelInfo().stats();
  expect("requests_running", static_cast<uint64_t>(worker.requests_running()));
  expect("requests_waiting", static_cast<uint64_t>(worker.requests_waiting()));
  expect("dense_blocks_used", static_cast<uint64_t>(worker.dense_blocks_used()));
  expect("meta_blocks_used", static_cast<uint64_t>(worker.meta_blocks_used()));
  expect("slots_used of the worker", static_cast<uint64_t>(worker.slots_used()));
  const kvstore::v1::GetStatsResponse store = StoreStats();
  expect("sequences", store.sequences());
  expect("reserved_extents", store.reserved_extents());
  // Named segments stay, for others to find, but nobody refers to them.
  expect("committed_segments", store.committed_segments(), store.named_segments());
  expect("unreferenced_pages", store.unreferenced_pages(), store.named_segment_pages());
  expect("free_pages", store.free_pages() + store.unreferenced_pages(), store.arena_pages());
  if (store.named_segments() == 0) {
    expect("clusters", store.clusters());
    expect("largest_free_pages", store.largest_free_pages(), store.arena_pages());
  }
  expect("used_slots of the store", store.used_slots());
  expect("evictions_in_flight", store.evictions_in_flight());
  expect("log_entries_refused", store.log_entries_refused_total());
  expect("segments_refused", store.segments_refused_total());
  return held;
}

std::string ServiceProcesses::WaitUntilNothingIsHeld(absl::Duration timeout) {
  std::string held;
  Eventually([&] { return (held = WhatIsHeld()).empty(); }, timeout);
  return held;
}

std::optional<std::set<std::string>> DurableNames(kvstore::v1::KvStoreService::Stub& store,
                                                  absl::Duration timeout) {
  std::set<std::string> names;
  kvstore::v1::ListDurableSegmentsRequest request;
  do {
    kvstore::v1::ListDurableSegmentsResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    context.set_wait_for_ready(true);
    if (!store.ListDurableSegments(&context, request, &response).ok()) return std::nullopt;
    for (const auto& segment : response.segments()) names.insert(segment.name());
    request.set_after_name(response.next_after_name());
  } while (!request.after_name().empty());
  return names;
}

int64_t AnonymousBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    long long kibibytes = 0;
    if (std::sscanf(line.c_str(), "RssAnon: %lld kB", &kibibytes) == 1) return kibibytes << 10;
  }
  return 0;
}

}  // namespace retroinfer::test_support
