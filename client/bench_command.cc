#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command_line.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/latency_report.h"
#include "client/load_plan.h"
#include "client/load_run.h"
#include "client/request_flags.h"
#include "common/build_info/build_info.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

struct BenchOptions {
  ConnectionOptions connection;
  int32_t num_prompts = 100;
  int64_t input_len = 1024;
  int64_t prefix_len = 0;
  int32_t output_len = 128;
  double request_rate = std::numeric_limits<double>::infinity();
  int32_t max_concurrency = 256;
  uint64_t load_seed = 0;
  std::string result_file;
  bool json = false;
};

void AddOptions(common::Settings* settings, BenchOptions* options, v1::GenerateRequest* request) {
  CLI::App& app = settings->app();
  app.add_option("--num-prompts", options->num_prompts, "Requests to send")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--input-len", options->input_len,
                 "Tokens of each prompt: random ones, unlike for every request")
      ->check(CLI::PositiveNumber);
  app.add_option("--prefix-len", options->prefix_len,
                 "Of those, leading tokens that all prompts share")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--output-len", options->output_len,
                 "Tokens to generate for each; end-of-sequence tokens do not end it")
      ->check(CLI::PositiveNumber);
  app.add_option("--request-rate", options->request_rate,
                 "Requests a second, in a Poisson process; inf sends all at once");
  app.add_option("--max-concurrency", options->max_concurrency,
                 "Requests in flight; a later one waits, and its time starts when it is sent")
      ->check(CLI::Range(1, 4096));
  app.add_option("--load-seed", options->load_seed, "Prompts and arrivals follow from it");
  app.add_option("--result-file", options->result_file,
                 "Write the result as JSON to this file, too");
  app.add_flag("--json", options->json, "Write the result as JSON instead of a table");
  AddRequestFlags(settings, request);
  AddConnectionOptions(settings, &options->connection);
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
      {"model_id", model.model_name()},
      {"device", model.device_name()},
      {"device_backend", model.backend()},
      {"commit", model.server_revision()},
      {"server_version", model.server_version()},
      {"client_commit", std::string(common::kBuildRevision)},
      {"compute_dtype", model.compute_dtype()},
      {"kv_dtype", model.kv_dtype()},
      {"load_format", model.load_format()},
      {"synthetic_context_tokens", model.synthetic_context_tokens()},
      {"synthetic_overlap", model.synthetic_overlap()},
      {"server_max_batch", model.max_batch()},
      {"server_max_model_len", model.max_model_len()},
      {"num_prompts", options.num_prompts},
      {"input_len", options.input_len},
      {"prefix_len", options.prefix_len},
      {"output_len", options.output_len},
      {"max_concurrency", options.max_concurrency},
      {"load_seed", options.load_seed},
      {"policy", policy == v1::ATTENTION_POLICY_FULL ? "full" : "wave"},
      {"retrieval_ratio",
       asked.has_retrieval_ratio() ? asked.retrieval_ratio() : server_default.retrieval_ratio()},
      {"estimation_ratio",
       asked.has_estimation_ratio() ? asked.estimation_ratio() : server_default.estimation_ratio()},
  };
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

bool WriteFile(const std::string& path, const nlohmann::json& json) {
  std::ofstream file(path);
  return static_cast<bool>(file << json.dump(2) << "\n");
}

}  // namespace

int BenchCommand(int argc, const char* const* argv, const Streams& streams) {
  BenchOptions options;
  v1::GenerateRequest request;
  common::Settings settings("Measures throughput and latency of a running server.",
                            common::kBuildVersion);
  AddOptions(&settings, &options, &request);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  const auto fail = [&](const std::string& message, int exit_code) {
    return Fail(streams, "bench", message, exit_code);
  };
  if (const absl::Status valid = CheckOptions(options, request); !valid.ok()) {
    return fail(std::string(valid.message()), kExitUsage);
  }
  InterruptWatcher interrupts;  // before gRPC has threads
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return fail(std::string(connection.status().message()), kExitUsage);

  v1::GetModelInfoResponse model;
  if (const grpc::Status status = AskModel(**connection, &model); !status.ok()) {
    return fail((*connection)->Explain(status), kExitFailed);
  }
  const int64_t total = options.input_len + options.output_len;
  if (total > model.max_model_len()) {
    return fail(absl::StrCat("--input-len and --output-len need ", total,
                             " tokens; the server's longest request has ", model.max_model_len()),
                kExitUsage);
  }
  std::vector<int32_t> excluded(model.eos_token_ids().begin(), model.eos_token_ids().end());
  if (static_cast<int64_t>(excluded.size()) >= model.vocab_size()) {
    return fail("the server's vocabulary has only end-of-sequence tokens", kExitFailed);
  }
  const std::vector<PlannedRequest> plan = PlanLoad({.num_prompts = options.num_prompts,
                                                     .input_len = options.input_len,
                                                     .prefix_len = options.prefix_len,
                                                     .request_rate = options.request_rate,
                                                     .vocab_size = model.vocab_size(),
                                                     .excluded_tokens = excluded,
                                                     .seed = options.load_seed});
  request.mutable_sampling()->set_max_tokens(options.output_len);
  request.mutable_sampling()->set_ignore_eos(true);
  LoadRunOptions run_options{.request = request, .max_concurrency = options.max_concurrency};
  if (IsTerminal(streams.err)) {
    run_options.on_progress = [&](int64_t done) {
      std::fprintf(streams.err, "\r%lld of %d requests", static_cast<long long>(done),
                   options.num_prompts);
    };
  }
  const LoadRun run = RunLoad(**connection, plan, run_options, &interrupts);
  if (run_options.on_progress) std::fputc('\n', streams.err);

  nlohmann::json report = SettingsJson(options, request, model);
  report.update(LatencyReport(run));
  v1::GetModelInfoResponse after;
  if (AskModel(**connection, &after).ok()) {
    report.update(ServerWork(model.stats(), after.stats(), report["policy"] == "wave"));
  }
  if (options.json) {
    std::fprintf(streams.out, "%s\n", report.dump(2).c_str());
  } else {
    std::fputs(FormatReport(report).c_str(), streams.out);
  }
  std::fflush(streams.out);
  if (!options.result_file.empty() && !WriteFile(options.result_file, report)) {
    return fail(absl::StrCat("cannot write ", options.result_file), kExitFailed);
  }
  if (run.interrupted) return fail("interrupted: the figures are of the requests before", 1);
  const int64_t failed = report.at("failed").get<int64_t>();
  if (failed > 0) return fail(absl::StrCat(failed, " requests failed"), kExitFailed);
  return kExitOk;
}

}  // namespace retroinfer::client
