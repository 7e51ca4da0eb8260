#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/number_format.h"
#include "client/command/server_registry.h"
#include "client/inspect/segment_report.h"
#include "common/build_info/build_info.h"
#include "common/config/byte_size.h"
#include "common/config/socket_dir.h"
#include "common/kv/kv_geometry.h"
#include "common/rpc/policy_name.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"

namespace retroinfer::client {
namespace {

constexpr std::chrono::seconds kCallTime(5);

using WorkerInfo = generation::v1::GetModelInfoResponse;
using StoreStats = kvstore::v1::GetStatsResponse;

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// Of the pages that decode steps looked up; 0 if there were none.
double HitPercent(const generation::v1::WorkerStats& stats) {
  return Percent(stats.page_hits_total(), stats.page_hits_total() + stats.page_misses_total() +
                                              stats.page_transients_total());
}

std::string Share(uint64_t part, uint64_t whole) {
  return absl::StrFormat("%s of %s (%.0f%%)", WithThousands(static_cast<int64_t>(part)),
                         WithThousands(static_cast<int64_t>(whole)), Percent(part, whole));
}

std::string Uptime(int64_t seconds) { return absl::FormatDuration(absl::Seconds(seconds)); }

void PrintWorker(const WorkerInfo& info, const std::string& address, std::FILE* out) {
  const generation::v1::WorkerStats& stats = info.stats();
  std::fprintf(out, "gpu_worker        %s, up %s, version %s\n", address.c_str(),
               Uptime(stats.uptime().seconds()).c_str(), info.server_version().c_str());
  std::fprintf(out, "  model           %s (%s, %s)\n", info.model_name().c_str(),
               info.architecture().c_str(), info.compute_dtype().c_str());
  std::fprintf(out, "  device          %s (%s)\n", info.device_name().c_str(),
               info.backend().c_str());
  std::string capacities;
  for (const auto& capacity : info.kv_capacities()) {
    absl::StrAppend(&capacities, capacities.empty() ? "" : ", ", WithThousands(capacity.tokens()),
                    " with ", common::NameOfPolicy(capacity.policy()));
  }
  std::fprintf(out, "  longest request %s tokens; capacity %s\n",
               WithThousands(info.max_model_len()).c_str(), capacities.c_str());
  std::fprintf(out, "  requests        %s running, %s waiting\n",
               WithThousands(stats.requests_running()).c_str(),
               WithThousands(stats.requests_waiting()).c_str());
  std::fprintf(out, "  tokens          %s prompt, %s generated in %s steps\n",
               WithThousands(static_cast<int64_t>(stats.prompt_tokens_total())).c_str(),
               WithThousands(static_cast<int64_t>(stats.generation_tokens_total())).c_str(),
               WithThousands(static_cast<int64_t>(stats.decode_steps_total())).c_str());
  const auto share = [](int64_t used, int64_t total) {
    return Share(static_cast<uint64_t>(used), static_cast<uint64_t>(total));
  };
  std::fprintf(out, "  dense KV        %s blocks\n",
               share(stats.dense_blocks_used(), stats.dense_blocks_total()).c_str());
  std::fprintf(out, "  wave index      %s blocks\n",
               share(stats.meta_blocks_used(), stats.meta_blocks_total()).c_str());
  std::fprintf(out, "  block cache     %s slots, hit ratio %.1f%%\n",
               share(stats.slots_used(), stats.slots_total()).c_str(), HitPercent(stats));
  std::fprintf(out, "  kv store        %s\n", stats.store_attached() ? "attached" : "NOT ATTACHED");
}

void PrintStore(const StoreStats& stats, const std::string& address, std::FILE* out) {
  const uint64_t used = stats.arena_pages() - std::min(stats.free_pages(), stats.arena_pages());
  std::fprintf(out, "kv_store_service  %s, up %s\n", address.c_str(),
               Uptime(static_cast<int64_t>(stats.uptime_seconds())).c_str());
  std::fprintf(out, "  arena           %s of %s (%.0f%%)\n",
               common::FormatByteSize(used * kPageBytes).c_str(),
               common::FormatByteSize(stats.arena_pages() * kPageBytes).c_str(),
               Percent(used, stats.arena_pages()));
  std::fprintf(out, "  segments        %s committed, %s reserved, of %s sequences\n",
               WithThousands(static_cast<int64_t>(stats.committed_segments())).c_str(),
               WithThousands(static_cast<int64_t>(stats.reserved_extents())).c_str(),
               WithThousands(static_cast<int64_t>(stats.sequences())).c_str());
  std::fprintf(out, "  evictions       %s posted, %s applied, %s kept\n",
               WithThousands(static_cast<int64_t>(stats.eviction_requests_total())).c_str(),
               WithThousands(static_cast<int64_t>(stats.evictions_applied_total())).c_str(),
               WithThousands(static_cast<int64_t>(stats.evictions_kept_total())).c_str());
  std::fprintf(out, "  worker          %s\n", stats.worker_attached() ? "attached" : "none");
}

nlohmann::json WorkerJson(const WorkerInfo& info) {
  const generation::v1::WorkerStats& stats = info.stats();
  nlohmann::json json = {{"model", info.model_name()},
                         {"version", info.server_version()},
                         {"revision", info.server_revision()},
                         {"device", info.device_name()},
                         {"device_backend", info.backend()},
                         {"uptime_s", stats.uptime().seconds()},
                         {"max_model_len", info.max_model_len()},
                         {"requests_running", stats.requests_running()},
                         {"requests_waiting", stats.requests_waiting()},
                         {"prompt_tokens_total", stats.prompt_tokens_total()},
                         {"generation_tokens_total", stats.generation_tokens_total()},
                         {"dense_blocks_used", stats.dense_blocks_used()},
                         {"dense_blocks_total", stats.dense_blocks_total()},
                         {"meta_blocks_used", stats.meta_blocks_used()},
                         {"meta_blocks_total", stats.meta_blocks_total()},
                         {"slots_used", stats.slots_used()},
                         {"slots_total", stats.slots_total()},
                         {"page_hit_ratio", HitPercent(stats) / 100},
                         {"store_attached", stats.store_attached()}};
  for (const auto& capacity : info.kv_capacities()) {
    json["kv_capacity_tokens_" + common::NameOfPolicy(capacity.policy())] = capacity.tokens();
  }
  return json;
}

nlohmann::json StoreJson(const StoreStats& stats) {
  return {{"uptime_s", stats.uptime_seconds()},
          {"arena_bytes", stats.arena_pages() * kPageBytes},
          {"arena_free_bytes", stats.free_pages() * kPageBytes},
          {"committed_segments", stats.committed_segments()},
          {"reserved_extents", stats.reserved_extents()},
          {"sequences", stats.sequences()},
          {"evictions_applied_total", stats.evictions_applied_total()},
          {"worker_attached", stats.worker_attached()}};
}

// What one service said: its answer, or why there is none.
template <typename Response>
struct Answer {
  std::optional<Response> response;
  std::string problem;
};

Answer<WorkerInfo> AskWorker(const Connection& connection) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTime);
  connection.Prepare(&context);
  WorkerInfo info;
  const grpc::Status status = connection.stub().GetModelInfo(&context, {}, &info);
  if (!status.ok()) return {std::nullopt, connection.Explain(status)};
  return {std::move(info), ""};
}

struct StoreInfo {
  StoreStats stats;
  std::vector<SegmentLine> segments;  // with --segments
};

Answer<StoreInfo> AskStore(const std::string& address, bool with_segments) {
  const auto stub = kvstore::v1::KvStoreService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTime);
  StoreInfo info;
  grpc::Status status = stub->GetStats(&context, {}, &info.stats);
  if (!status.ok()) {
    return {std::nullopt, absl::StrCat("no store answers at ", address, " (",
                                       status.error_message(), "): name its --socket-dir")};
  }
  if (with_segments) status = ReadSegments(*stub, &info.segments);
  if (!status.ok()) {
    return {std::nullopt, absl::StrCat("the store at ", address, " does not list its segments (",
                                       status.error_message(), ")")};
  }
  return {std::move(info), ""};
}

// Where the services of one server are asked.
struct ServerPlace {
  ConnectionOptions worker;
  std::string socket_dir;

  std::string StoreAddress() const { return absl::StrCat("unix:", socket_dir, "/kv_store.sock"); }
};

struct ServerAnswers {
  Answer<WorkerInfo> worker;
  Answer<StoreInfo> store;

  bool AreWhole() const { return worker.response.has_value() && store.response.has_value(); }
};

// Servers that run here, if there are any: each worker is asked on the socket in its folder, which
// speaks plain text.
std::vector<ServerPlace> FindServers(const ConnectionOptions& options) {
  const std::vector<std::string> usual = {common::SocketDirOf(common::DefaultSocketDir()),
                                          "/run/retroinfer"};
  std::vector<ServerPlace> places;
  for (const std::string& folder : ServerRegistry().Running(usual)) {
    ServerPlace place = {options, folder};
    const std::string socket = absl::StrCat(folder, "/generation.sock");
    if (std::filesystem::exists(socket)) place.worker.address = absl::StrCat("unix:", socket);
    places.push_back(std::move(place));
  }
  return places;
}

nlohmann::json AnswersJson(const ServerAnswers& answers, bool with_segments) {
  const auto& [worker, store] = answers;
  nlohmann::json json;
  json["gpu_worker"] = worker.response.has_value() ? WorkerJson(*worker.response)
                                                   : nlohmann::json{{"problem", worker.problem}};
  json["kv_store_service"] = store.response.has_value()
                                 ? StoreJson(store.response->stats)
                                 : nlohmann::json{{"problem", store.problem}};
  if (with_segments && store.response.has_value()) {
    json["kv_store_service"]["segments"] = SegmentsJson(store.response->segments);
  }
  return json;
}

// One object for one server, a list of them for several.
void PrintJson(const std::vector<ServerPlace>& places, const std::vector<ServerAnswers>& answers,
               bool with_segments, std::FILE* out) {
  nlohmann::json servers = nlohmann::json::array();
  for (size_t i = 0; i < places.size(); ++i) {
    servers.push_back(AnswersJson(answers[i], with_segments));
    servers.back()["socket_dir"] = places[i].socket_dir;
  }
  const nlohmann::json json =
      servers.size() == 1 ? servers[0] : nlohmann::json{{"servers", servers}};
  std::fprintf(out, "%s\n", json.dump(2).c_str());
}

void Print(const std::vector<ServerPlace>& places, const std::vector<ServerAnswers>& answers,
           bool with_segments, std::FILE* out) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (i > 0) std::fputc('\n', out);
    const auto& [worker, store] = answers[i];
    if (worker.response.has_value()) PrintWorker(*worker.response, places[i].worker.address, out);
    if (!store.response.has_value()) continue;
    PrintStore(store.response->stats, places[i].StoreAddress(), out);
    if (with_segments) PrintSegments(store.response->segments, out);
  }
}

}  // namespace

int PsCommand(int argc, const char* const* argv, const Streams& streams) {
  ConnectionOptions connection_options;
  std::string socket_dir = common::DefaultSocketDir();
  bool json = false;
  bool with_segments = false;
  common::Settings settings(
      "Shows what worker and store are doing: of the servers of this user that run here, or of the "
      "one that --address and --socket-dir name.",
      common::kBuildVersion);
  AddConnectionOptions(&settings, &connection_options);
  settings.app().add_option("--socket-dir", socket_dir,
                            "Socket folder of the kv_store_service, as that got it");
  settings.app().add_flag("--segments", with_segments,
                          "List the segments in the arena, and how their clusters lie in pages");
  settings.app().add_flag("--json", json, "Write one JSON object");
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  const auto is_given = [&](const char* flag) { return settings.app().count(flag) > 0; };
  std::vector<ServerPlace> places;
  if (!is_given("--address") && !is_given("--socket-dir") && !is_given("--tls-ca")) {
    places = FindServers(connection_options);
  }
  if (places.empty()) places = {{connection_options, common::SocketDirOf(socket_dir)}};

  std::vector<ServerAnswers> answers;
  for (const ServerPlace& place : places) {
    const auto connection = Connection::Open(place.worker);
    if (!connection.ok()) {
      return Fail(streams, "ps", std::string(connection.status().message()), kExitUsage);
    }
    answers.push_back({AskWorker(**connection), AskStore(place.StoreAddress(), with_segments)});
  }
  (json ? PrintJson : Print)(places, answers, with_segments, streams.out);
  std::fflush(streams.out);
  bool all = true;
  for (const ServerAnswers& server : answers) {
    all &= server.AreWhole();
    for (const std::string& problem : {server.worker.problem, server.store.problem}) {
      if (!problem.empty()) Fail(streams, "ps", problem, kExitFailed);
    }
  }
  return all ? kExitOk : kExitFailed;
}

}  // namespace retroinfer::client
