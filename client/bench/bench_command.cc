#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/bench/latency_report.h"
#include "client/bench/load_plan.h"
#include "client/bench/load_progress_line.h"
#include "client/bench/load_run.h"
#include "client/bench/workload.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "client/generate/request_flags.h"
#include "client/serve/own_services.h"
#include "common/build_info/build_info.h"
#include "common/clock/steady_now.h"
#include "common/files/named_stream.h"
#include "common/rpc/policy_name.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

// After this word come options of services that bench starts for itself.
constexpr std::string_view kServicesFollow = "--";
constexpr const char* kRunningServerFlags[] = {"--address", "--api-key-file", "--tls-ca",
                                               "--tls-certificate", "--tls-key"};
// A call to a service that dies may fail this long before the end of its process is seen.
constexpr absl::Duration kEndIsSeen = absl::Milliseconds(500);

struct BenchOptions {
  ConnectionOptions connection;
  bool has_services = false;  // of its own
  std::vector<std::string> service_arguments;
  bool show_log = false;
  int32_t num_prompts = 100;
  int64_t input_len = 1024;
  int64_t prefix_len = 0;
  int32_t output_len = 128;
  double request_rate = std::numeric_limits<double>::infinity();
  int32_t max_concurrency = 256;
  std::string workload;  // a file or a mix; empty: prompts of one shape
  LatencyGoal goal;
  uint64_t load_seed = 0;
  std::string result_file;
  bool json = false;
};

void AddOptions(common::Settings* settings, BenchOptions* options, v1::GenerateRequest* request) {
  CLI::App& app = settings->app();
  app.add_option("--num-prompts", options->num_prompts, "Requests to send")
      ->check(CLI::Range(1, 1'000'000));
  settings->AddTokenCount("--input-len", &options->input_len,
                          "Tokens of each prompt: random ones, unlike for every request", 1);
  settings->AddTokenCount("--prefix-len", &options->prefix_len,
                          "Of those, leading tokens that all prompts share");
  app.add_option("--output-len", options->output_len,
                 "Tokens to generate for each; end-of-sequence tokens do not end it")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--request-rate", options->request_rate,
                 "Requests a second, in a Poisson process; inf sends all at once");
  app.add_option(
      "--workload", options->workload,
      "Requests of unlike shapes: chat, documents, agents or mixed, or a file of JSON "
      "lines with input_len, output_len, arrival, prefix, prefix_len, class, priority, tenant");
  settings->AddDuration("--slo-first-token", &options->goal.first_token,
                        "A request is good if its first token comes within this; 0s: always");
  settings->AddDuration("--slo-per-token", &options->goal.per_token,
                        "... and if a token after it takes at most this on average; 0s: always");
  app.add_option("--max-concurrency", options->max_concurrency,
                 "Requests in flight; a later one waits, and its time starts when it is sent")
      ->check(CLI::Range(1, 4096));
  app.add_option("--load-seed", options->load_seed, "Prompts and arrivals follow from it");
  app.add_option("--result-file", options->result_file,
                 "Write the result as JSON to this file, too");
  app.add_flag("--json", options->json, "Write the result as JSON instead of a table");
  app.add_flag("--show-log", options->show_log,
               "The services after -- write their log to stderr; else it is shown if one fails");
  AddRequestFlags(settings, request);
  AddConnectionOptions(settings, &options->connection);
}

// Takes what follows "--" and returns how many words come before it.
int TakeServiceArguments(int argc, const char* const* argv, BenchOptions* options) {
  const char* const* const end = argv + argc;
  const char* const* const split = std::find(argv, end, kServicesFollow);
  options->has_services = split != end;
  if (options->has_services) options->service_arguments.assign(split + 1, end);
  return static_cast<int>(split - argv);
}

// `arguments` are those before "--".
absl::Status CheckServer(const BenchOptions& options, const std::vector<std::string>& arguments) {
  for (const char* flag : kRunningServerFlags) {
    if (!options.has_services || !common::IsGiven(arguments, flag)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag,
                     " is for a running server, and what follows -- is for services that are "
                     "started: leave one of the two out"));
  }
  if (options.show_log && !options.has_services) {
    return absl::InvalidArgumentError(
        "--show-log is for services that are started: their options follow --");
  }
  return absl::OkStatus();
}

// `arguments` are those before "--".
absl::Status CheckWorkload(const BenchOptions& options, const std::vector<std::string>& arguments) {
  if (options.workload.empty()) return absl::OkStatus();
  const auto mixes = MixNames();
  const bool is_mix = std::find(mixes.begin(), mixes.end(), options.workload) != mixes.end();
  for (const char* flag :
       {"--input-len", "--prefix-len", "--output-len", "--num-prompts", "--request-rate"}) {
    const bool says_how_many =
        flag == std::string_view("--num-prompts") || flag == std::string_view("--request-rate");
    if (!common::IsGiven(arguments, flag) || (is_mix && says_how_many)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--workload ", options.workload, " says what ",
                                                   flag, " would say: leave one of the two out"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const BenchOptions& options, const v1::GenerateRequest& request) {
  if (!(options.request_rate > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--request-rate is ", options.request_rate, ": it must be above 0, or inf"));
  }
  if (options.prefix_len > options.input_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--prefix-len ", options.prefix_len, " is longer than --input-len ", options.input_len));
  }
  if (request.sampling().has_max_tokens()) {
    return absl::InvalidArgumentError("say --output-len instead of --max-tokens");
  }
  if (!request.request_id().empty()) {
    return absl::InvalidArgumentError(
        "--request-id would give all requests one name; leave it out");
  }
  return absl::OkStatus();
}

std::string UtcTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

// What the figures were measured with.
nlohmann::json SettingsJson(const BenchOptions& options, const v1::GenerateRequest& request,
                            const v1::GetModelInfoResponse& model) {
  const v1::AttentionOptions& server_default = model.default_attention();
  const v1::AttentionOptions& asked = request.attention();
  const v1::AttentionPolicy policy =
      asked.policy() == v1::ATTENTION_POLICY_UNSPECIFIED ? server_default.policy() : asked.policy();
  nlohmann::json json = {
      {"date", UtcTime(absl::Now())},
      {"backend", "retroinfer"},
      {"services", options.has_services ? "own" : "running"},
      {"model_id", model.model_name()},
      {"device", model.device_name()},
      {"device_backend", model.backend()},
      {"commit", model.server_revision()},
      {"server_version", model.server_version()},
      {"client_commit", std::string(common::kBuildRevision)},
      {"compute_dtype", model.compute_dtype()},
      {"kv_dtype", model.kv_dtype()},
      {"index_dtype", model.index_dtype()},
      {"weights_dtype", model.weights_dtype()},
      {"load_format", model.load_format()},
      {"synthetic_context_tokens", model.synthetic_context_tokens()},
      {"synthetic_overlap", model.has_synthetic_overlap()
                                ? nlohmann::json(model.synthetic_overlap())
                                : nlohmann::json("as in text")},
      {"server_max_batch", model.max_batch()},
      {"server_max_model_len", model.max_model_len()},
      {"num_prompts", options.num_prompts},
      {"input_len", options.input_len},
      {"prefix_len", options.prefix_len},
      {"output_len", options.output_len},
      {"max_concurrency", options.max_concurrency},
      {"load_seed", options.load_seed},
      {"policy", common::NameOfPolicy(policy)},
      {"retrieval_ratio",
       asked.has_retrieval_ratio() ? asked.retrieval_ratio() : server_default.retrieval_ratio()},
      {"estimation_ratio",
       asked.has_estimation_ratio() ? asked.estimation_ratio() : server_default.estimation_ratio()},
  };
  if (options.has_services) json["service_arguments"] = options.service_arguments;
  if (!options.workload.empty()) {
    json["workload"] = options.workload;
    for (const char* name : {"input_len", "prefix_len", "output_len"}) json.erase(name);
  }
  if (options.goal.any()) {
    json["slo_first_token_ms"] = absl::ToDoubleMilliseconds(options.goal.first_token);
    json["slo_per_token_ms"] = absl::ToDoubleMilliseconds(options.goal.per_token);
  }
  // JSON has no infinity.
  if (std::isinf(options.request_rate)) {
    json["request_rate"] = "inf";
  } else {
    json["request_rate"] = options.request_rate;
  }
  return json;
}

grpc::Status AskModel(Connection& connection, v1::GetModelInfoResponse* model) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  connection.Prepare(&context);
  return connection.stub().GetModelInfo(&context, {}, model);
}

// What the server did between two answers, for whomever; `has_pages`: the run's requests looked
// pages up. Nothing if the server was started again meanwhile.
nlohmann::json ServerWork(const v1::WorkerStats& before, const v1::WorkerStats& after,
                          bool has_pages) {
  if (after.decode_steps_total() < before.decode_steps_total()) return nlohmann::json::object();
  const auto pages = [](const v1::WorkerStats& stats) {
    return stats.page_hits_total() + stats.page_misses_total() + stats.page_transients_total();
  };
  const auto asked = static_cast<double>(pages(after) - pages(before));
  const auto hits = static_cast<double>(after.page_hits_total() - before.page_hits_total());
  return {
      {"server_decode_steps", after.decode_steps_total() - before.decode_steps_total()},
      {"server_page_hit_ratio", has_pages && asked > 0 ? nlohmann::json(hits / asked) : nullptr}};
}

// Measures a server that serves.
class Bench {
 public:
  Bench(const BenchOptions& options, v1::GenerateRequest request, const Streams& streams)
      : options_(options), request_(std::move(request)), streams_(streams) {}

  // Asks the server what it serves, and plans the requests. Returns the exit code if that fails.
  std::optional<int> Prepare(const ConnectionOptions& server);

  // Sends them and prints the figures. The run ends early when `interrupted` says so, or when
  // `check` (nullptr: none) fails. Returns the exit code.
  int Run(const std::function<bool()>& interrupted, const std::function<absl::Status()>& check);

 private:
  int Fail(const std::string& message, int exit_code = kExitFailed) const {
    return client::Fail(streams_, "bench", message, exit_code);
  }
  std::optional<int> PrepareWorkload(std::span<const int32_t> excluded);
  LoadRun Send(const std::function<bool()>& should_stop);

  const BenchOptions& options_;
  v1::GenerateRequest request_;
  const Streams streams_;
  std::unique_ptr<Connection> connection_;
  v1::GetModelInfoResponse model_;
  std::vector<PlannedRequest> plan_;
};

std::optional<int> Bench::Prepare(const ConnectionOptions& server) {
  auto connection = Connection::Open(server);
  if (!connection.ok()) return Fail(std::string(connection.status().message()), kExitUsage);
  connection_ = *std::move(connection);
  if (const grpc::Status status = AskModel(*connection_, &model_); !status.ok()) {
    return Fail(connection_->Explain(status));
  }
  const std::vector<int32_t> excluded(model_.eos_token_ids().begin(), model_.eos_token_ids().end());
  if (static_cast<int64_t>(excluded.size()) >= model_.vocab_size()) {
    return Fail("the server's vocabulary has only end-of-sequence tokens");
  }
  request_.mutable_sampling()->set_ignore_eos(true);
  if (!options_.workload.empty()) return PrepareWorkload(excluded);
  const int64_t total = options_.input_len + options_.output_len;
  if (total > model_.max_model_len()) {
    return Fail(absl::StrCat("--input-len and --output-len need ", total,
                             " tokens; the server's longest request has ", model_.max_model_len()),
                kExitUsage);
  }
  plan_ = PlanLoad({.num_prompts = options_.num_prompts,
                    .input_len = options_.input_len,
                    .prefix_len = options_.prefix_len,
                    .request_rate = options_.request_rate,
                    .vocab_size = model_.vocab_size(),
                    .excluded_tokens = excluded,
                    .seed = options_.load_seed});
  request_.mutable_sampling()->set_max_tokens(options_.output_len);
  return std::nullopt;
}

std::optional<int> Bench::PrepareWorkload(std::span<const int32_t> excluded) {
  const auto mixes = MixNames();
  std::vector<WorkloadRequest> requests;
  if (std::find(mixes.begin(), mixes.end(), options_.workload) != mixes.end()) {
    requests = MakeMix(options_.workload, {.num_prompts = options_.num_prompts,
                                           .request_rate = options_.request_rate,
                                           .max_request_len = model_.max_model_len(),
                                           .seed = options_.load_seed});
  } else {
    const absl::StatusOr<std::string> text = ReadWholeFile(options_.workload);
    if (!text.ok()) {
      return Fail(absl::StrCat("--workload: cannot read it: ", std::string(text.status().message()),
                               "; it is no mix either: chat, documents, agents, mixed"),
                  kExitUsage);
    }
    auto parsed = ParseWorkload(*text);
    if (!parsed.ok()) {
      return Fail(absl::StrCat(options_.workload, ": ", std::string(parsed.status().message())),
                  kExitUsage);
    }
    requests = *std::move(parsed);
  }
  for (const WorkloadRequest& request : requests) {
    const int64_t total = request.input_len + request.output_len;
    if (total <= model_.max_model_len()) continue;
    return Fail(absl::StrCat("a request of the workload needs ", total,
                             " tokens; the server's longest request has ", model_.max_model_len()),
                kExitUsage);
  }
  plan_ = PlanWorkload(requests, model_.vocab_size(), excluded, options_.load_seed);
  return std::nullopt;
}

LoadRun Bench::Send(const std::function<bool()>& should_stop) {
  LoadProgressLine line(streams_.err, IsTerminal(streams_.err), static_cast<int64_t>(plan_.size()),
                        common::SteadyNow());
  std::atomic<int64_t> num_done{0};
  LoadRunOptions run_options{.request = request_,
                             .max_concurrency = options_.max_concurrency,
                             .on_progress = [&](int64_t done) { num_done = done; }};
  // Also while no request ends.
  run_options.should_stop = [&] {
    line.Show(num_done, common::SteadyNow());
    return should_stop();
  };
  LoadRun run = RunLoad(*connection_, plan_, run_options);
  line.Show(num_done, common::SteadyNow());
  return run;
}

int Bench::Run(const std::function<bool()>& interrupted,
               const std::function<absl::Status()>& check) {
  absl::Status health;
  const LoadRun run = Send([&] {
    if (interrupted()) return true;
    if (check) health = check();
    return !health.ok();
  });

  nlohmann::json report = SettingsJson(options_, request_, model_);
  report.update(LatencyReport(run, options_.goal));
  v1::GetModelInfoResponse after;
  if (health.ok() && AskModel(*connection_, &after).ok()) {
    report.update(ServerWork(model_.stats(), after.stats(), report["policy"] == "wave"));
  }
  if (options_.json) {
    std::fprintf(streams_.out, "%s\n", report.dump(2).c_str());
  } else {
    std::fputs(FormatReport(report).c_str(), streams_.out);
  }
  std::fflush(streams_.out);
  if (!options_.result_file.empty()) {
    const absl::Status written =
        common::WriteNamedOutput(options_.result_file, absl::StrCat(report.dump(2), "\n"));
    if (!written.ok()) return Fail(std::string(written.message()));
  }
  const int64_t failed = report.at("failed").get<int64_t>();
  const absl::Time end_is_seen = absl::Now() + kEndIsSeen;
  while (check && failed > 0 && !run.interrupted && health.ok() && absl::Now() < end_is_seen) {
    health = check();
    absl::SleepFor(absl::Milliseconds(10));
  }
  if (!health.ok()) return Fail(std::string(health.message()));
  if (run.interrupted) return Fail("interrupted: the figures are of the requests before");
  if (failed > 0) return Fail(absl::StrCat(failed, " requests failed"));
  return kExitOk;
}

int BenchRunningServer(const BenchOptions& options, const v1::GenerateRequest& request,
                       const Streams& streams) {
  std::atomic<bool> interrupted{false};
  InterruptWatcher interrupts;  // before gRPC has threads
  Bench bench(options, request, streams);
  if (const auto done = bench.Prepare(options.connection)) return *done;
  interrupts.SetCallback([&](int) { interrupted = true; });
  const int exit_code = bench.Run([&] { return interrupted.load(); }, nullptr);
  return interrupted ? interrupts.ExitCode() : exit_code;
}

int BenchOwnServices(const BenchOptions& options, const ServeOptions& serve_options,
                     const v1::GenerateRequest& request, const Streams& streams) {
  auto services = OwnServices::Create(serve_options, options.show_log);
  if (!services.ok()) {
    return Fail(streams, "bench", std::string(services.status().message()), kExitFailed);
  }
  std::atomic<int> signals{0};
  InterruptWatcher interrupts;  // before gRPC has threads
  interrupts.SetCallback([&](int) {
    if (++signals == 1) {
      std::fprintf(streams.err, "retroinfer bench: stopping; once more to stop at once\n");
    }
  });
  if (IsTerminal(streams.err)) {
    std::fprintf(streams.err, "starting kv_store_service and gpu_worker\n");
  }
  const absl::Status started = services->Start(
      "bench", [&] { return signals.load(); }, streams);
  int exit_code = kExitFailed;
  if (started.ok()) {
    Bench bench(options, request, streams);
    const auto done = bench.Prepare(services->connection());
    exit_code =
        done ? *done
             : bench.Run([&] { return signals.load() > 0; }, [&] { return services->Check(); });
  } else if (absl::IsCancelled(started)) {
    Fail(streams, "bench", "interrupted: the services did not serve yet", exit_code);
  } else {
    Fail(streams, "bench", std::string(started.message()), exit_code);
  }
  services->Stop();
  return signals.load() > 0 ? interrupts.ExitCode() : exit_code;
}

}  // namespace

int BenchCommand(int argc, const char* const* argv, const Streams& streams) {
  BenchOptions options;
  v1::GenerateRequest request;
  const int num_own = TakeServiceArguments(argc, argv, &options);
  common::Settings settings(
      "Measures throughput and latency: of a running server, or of services that it starts for the "
      "occasion with the options of 'retroinfer serve' that follow --, and stops.",
      common::kBuildVersion);
  settings.app().footer(
      "Without a running server:\n"
      "  retroinfer bench --num-prompts 8 --input-len 128 -- --model DIR --arena-bytes 8GiB\n"
      "'retroinfer bench -- --help' lists what may follow --.");
  AddOptions(&settings, &options, &request);
  if (const auto done = ParseArguments(settings, num_own, argv, streams)) return *done;
  absl::Status valid = CheckServer(options, {argv + 1, argv + num_own});
  if (valid.ok()) valid = CheckOptions(options, request);
  if (valid.ok()) valid = CheckWorkload(options, {argv + 1, argv + num_own});
  if (!valid.ok()) return Fail(streams, "bench", std::string(valid.message()), kExitUsage);
  if (!options.has_services) return BenchRunningServer(options, request, streams);
  ServeOptions serve_options;
  if (const auto done =
          ParseOwnServices("bench --", options.service_arguments, &serve_options, streams)) {
    return *done;
  }
  return BenchOwnServices(options, serve_options, request, streams);
}

}  // namespace retroinfer::client
