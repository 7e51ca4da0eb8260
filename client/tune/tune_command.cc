#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "client/command/number_format.h"
#include "client/generate/scorer.h"
#include "client/serve/own_services.h"
#include "client/tune/budget_search.h"
#include "client/tune/tune_plan.h"
#include "client/tune/tune_report.h"
#include "common/build_info/build_info.h"
#include "common/files/named_stream.h"
#include "common/rpc/policy_name.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

// After this word come options of the services that tune starts for itself.
constexpr std::string_view kServicesFollow = "--";
constexpr const char* kFileName = "retrieval.toml";
constexpr double kDefaultChange = 0.05;
constexpr size_t kTextsMax = 64;

struct TuneOptions {
  ConnectionOptions connection;
  std::string model;  // of services of its own; empty: a running server
  std::vector<std::string> service_arguments;
  bool show_log = false;
  std::vector<std::string> texts;
  std::string change, perplexity;  // targets, as they were given
  TuneTarget target;
  int64_t context = 0;  // longest; 0: the server's
  int64_t scored = 256;
  int64_t windows = 4;
  std::string cache_dir, out;
};

void AddOptions(common::Settings* settings, TuneOptions* options) {
  CLI::App& app = settings->app();
  app.add_option("--model", options->model,
                 "Model folder; services for it are started and stopped. Without it, --address "
                 "names a running server");
  app.add_option("--text", options->texts,
                 "Text of the kind that the server is for, UTF-8; several may be given, and each "
                 "must be longer than the contexts that are measured with it");
  app.add_option("--target-change", options->change,
                 "Keep the mean change of a token's log-probability within this; 0.05 if no "
                 "target is given");
  app.add_option("--target-perplexity", options->perplexity,
                 "Keep perplexity within this of full attention's, for example 0.5%");
  settings->AddTokenCount(
      "--context", &options->context,
      "Longest context to measure; 0: the longest that server and texts have. Measured are 16K, "
      "32K, ... and this one");
  settings->AddTokenCount("--tokens", &options->scored, "Tokens scored behind each context", 32);
  app.add_option("--windows", options->windows, "Contexts of each length, at most")
      ->check(CLI::Range(1, 256));
  app.add_option(
      "--cache-dir", options->cache_dir,
      "Write retrieval.toml there: 'retroinfer serve' with the same --cache-dir uses it");
  app.add_option("--out", options->out, "Write the result to this file");
  app.add_flag("--show-log", options->show_log,
               "The services write their log to stderr; else it is shown if one fails");
  AddConnectionOptions(settings, &options->connection);
}

// `arguments` are those before "--".
absl::Status CheckOptions(TuneOptions* options, const std::vector<std::string>& arguments) {
  if (options->texts.empty()) {
    return absl::InvalidArgumentError(
        "--text is missing: name texts of the kind that the server is for, each longer than the "
        "contexts that matter (100 KB are about 25,000 tokens). What wave needs differs from text "
        "to text, so none is chosen for you");
  }
  if (options->texts.size() > kTextsMax) {
    return absl::InvalidArgumentError(absl::StrCat("at most ", kTextsMax, " --text may be given"));
  }
  if (!options->change.empty() && !options->perplexity.empty()) {
    return absl::InvalidArgumentError("give one of --target-change and --target-perplexity");
  }
  if (!options->cache_dir.empty() && !options->out.empty()) {
    return absl::InvalidArgumentError("give one of --cache-dir and --out");
  }
  for (const auto& [flag, given, target] :
       {std::tuple("--target-change", &options->change, &options->target.change),
        {"--target-perplexity", &options->perplexity, &options->target.perplexity}}) {
    if (given->empty()) continue;
    const absl::StatusOr<double> share = ShareOf(*given);
    if (!share.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", share.status().message()));
    }
    *target = *share;
  }
  if (!options->target.change && !options->target.perplexity) {
    options->target.change = kDefaultChange;
  }
  if (options->out.empty()) {
    options->out =
        options->cache_dir.empty() ? kFileName : absl::StrCat(options->cache_dir, "/", kFileName);
  }
  const bool is_own = !options->model.empty();
  if (!is_own && (!options->service_arguments.empty() || options->show_log)) {
    return absl::InvalidArgumentError(
        "--show-log and what follows -- are for services that are started: name a --model");
  }
  if (is_own && common::IsGiven(arguments, "--address")) {
    return absl::InvalidArgumentError(
        "--address is for a running server, and --model starts one: leave one of the two out");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReadTexts(const std::vector<std::string>& files) {
  std::vector<std::string> texts;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(std::string text, ReadWholeFile(file));
    if (text.size() > Scorer::kTextBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(file, " has ", text.size() >> 20,
                                                     " MiB, at most ", Scorer::kTextBytesMax >> 20,
                                                     " can be sent: divide it"));
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

// Measures a server that serves.
class Tuner {
 public:
  Tuner(const TuneOptions& options, const std::vector<std::string>& texts, Scorer scorer,
        const Connection& connection, const Streams& streams)
      : options_(options),
        texts_(texts),
        scorer_(std::move(scorer)),
        connection_(connection),
        streams_(streams) {}

  // Asks the server what it serves, measures each length, and returns what is to be written.
  absl::StatusOr<common::RetrievalFile> Run();

 private:
  absl::Status Prepare();
  // Scores of the window under a policy; `ratio` of wave. Those of full are kept.
  absl::StatusOr<std::vector<TokenScore>> ScoresOf(const TextWindow& window, int64_t context,
                                                   std::optional<double> ratio);
  absl::StatusOr<common::MeasuredRatio> Measure(const std::vector<TextWindow>& windows,
                                                int64_t context, double ratio);
  absl::Status Explained(const grpc::Status& status) const {
    return status.ok() ? absl::OkStatus() : absl::UnavailableError(connection_.Explain(status));
  }

  const TuneOptions& options_;
  const std::vector<std::string>& texts_;
  Scorer scorer_;
  const Connection& connection_;
  const Streams streams_;
  v1::GetModelInfoResponse info_;
  std::vector<std::vector<int32_t>> tokens_;  // by text
  std::vector<int64_t> lengths_;
  // Under policy full, by the text's number, the window's begin and its context.
  std::map<std::tuple<size_t, int64_t, int64_t>, std::vector<TokenScore>> full_;
};

absl::Status Tuner::Prepare() {
  RETURN_IF_ERROR(Explained(scorer_.GetModelInfo(&info_)));
  if (info_.model_fingerprint().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server (", info_.server_version(),
                     ") does not say which model it has: it is older than this program"));
  }
  int64_t longest_text = 0;
  for (const std::string& text : texts_) {
    RETURN_IF_ERROR(Explained(scorer_.Tokenize(text, &tokens_.emplace_back())));
    longest_text = std::max(longest_text, std::ssize(tokens_.back()));
  }
  const int64_t most = info_.max_model_len() - options_.scored;
  if (options_.context > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--context ", options_.context, " and ", options_.scored,
        " tokens behind it are more than the ", info_.max_model_len(), " that the server takes"));
  }
  const int64_t longest =
      options_.context != 0 ? options_.context : std::min(most, longest_text - options_.scored);
  if (longest < 1 || longest + options_.scored > longest_text) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a context of ", WithThousands(std::max<int64_t>(1, longest)), " and ", options_.scored,
        " tokens behind it need a longer text: the longest has ", WithThousands(longest_text),
        " tokens. Name a longer --text, or a shorter --context"));
  }
  lengths_ = TuneLengths(longest);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenScore>> Tuner::ScoresOf(const TextWindow& window, int64_t context,
                                                        std::optional<double> ratio) {
  const ScoreWindow tokens{.begin = window.begin,
                           .first = window.begin + context,
                           .end = window.begin + context + options_.scored};
  v1::ScoreRequest request;
  request.set_logprobs(1);
  request.mutable_attention()->set_policy(ratio.has_value() ? v1::ATTENTION_POLICY_WAVE
                                                            : v1::ATTENTION_POLICY_FULL);
  if (ratio.has_value()) request.mutable_attention()->set_retrieval_ratio(*ratio);
  SetWindow(tokens_[window.text], tokens, &request);
  std::vector<TokenScore> scores;
  RETURN_IF_ERROR(Explained(scorer_.Score(request, tokens, &scores)));
  return scores;
}

// Wave comes before full: what it leaves in the cache, segments, is read by both, and so a context
// is computed once.
absl::StatusOr<common::MeasuredRatio> Tuner::Measure(const std::vector<TextWindow>& windows,
                                                     int64_t context, double ratio) {
  std::vector<WindowScores> scores;
  for (const TextWindow& window : windows) {
    WindowScores& one = scores.emplace_back();
    ASSIGN_OR_RETURN(one.wave, ScoresOf(window, context, ratio));
    std::vector<TokenScore>& full = full_[{window.text, window.begin, context}];
    if (full.empty()) {
      ASSIGN_OR_RETURN(full, ScoresOf(window, context, std::nullopt));
    }
    one.full = full;
  }
  const common::MeasuredRatio measured = Summarize(context, ratio, scores);
  std::fprintf(streams_.err, "%s\n", DescribeMeasured(measured).c_str());
  return measured;
}

absl::StatusOr<common::RetrievalFile> Tuner::Run() {
  RETURN_IF_ERROR(Prepare());
  common::RetrievalFile file;
  file.subject = {.model_name = info_.model_name(),
                  .fingerprint = info_.model_fingerprint(),
                  .kv_dtype = info_.kv_dtype(),
                  .index_dtype = info_.index_dtype(),
                  .wave_index = info_.wave_index(),
                  .quality = info_.quality()};
  file.target_change = options_.target.change;
  file.target_perplexity = options_.target.perplexity;
  file.texts = options_.texts;
  std::vector<int64_t> text_tokens;
  for (const std::vector<int32_t>& tokens : tokens_) text_tokens.push_back(std::ssize(tokens));
  for (const int64_t context : lengths_) {
    const std::vector<TextWindow> windows =
        PlanTextWindows(text_tokens, lengths_, context, options_.scored, options_.windows);
    ASSIGN_OR_RETURN(const FoundBudget found,
                     FindBudget(RatioLadder(context, info_.min_retrieved_clusters()),
                                info_.default_attention().retrieval_ratio(), options_.target,
                                [&](double ratio) { return Measure(windows, context, ratio); }));
    file.budgets.push_back(found.budget);
    file.measured.insert(file.measured.end(), found.measured.begin(), found.measured.end());
  }
  return file;
}

int WriteResult(const TuneOptions& options, const common::RetrievalFile& file,
                const Streams& streams) {
  const std::string table = TuneTable(file, options.target);
  if (const absl::Status status = WriteResults(table, streams.out); !status.ok()) {
    return Fail(streams, "tune", std::string(status.message()), kExitFailed);
  }
  const absl::Status written =
      common::WriteNamedOutput(options.out, common::FormatRetrievalFile(file));
  if (!written.ok()) {
    return Fail(streams, "tune", std::string(written.message()), kExitFailed);
  }
  std::fprintf(streams.err, "%s is written: use it with 'retroinfer serve --retrieval %s'\n",
               options.out.c_str(), options.out.c_str());
  return kExitOk;
}

int TuneServer(const TuneOptions& options, const std::vector<std::string>& texts,
               const ConnectionOptions& server, InterruptWatcher& interrupts,
               const std::function<absl::Status()>& check, const Streams& streams) {
  const auto connection = Connection::Open(server);
  if (!connection.ok()) {
    return Fail(streams, "tune", std::string(connection.status().message()), kExitUsage);
  }
  const std::string affinity = absl::StrFormat("%016x", std::hash<std::string>()(texts[0]));
  Tuner tuner(options, texts, Scorer(**connection, affinity, false, &interrupts), **connection,
              streams);
  const absl::StatusOr<common::RetrievalFile> file = tuner.Run();
  if (interrupts.last_signal() != 0) {
    return Fail(streams, "tune", "interrupted: nothing is written", interrupts.ExitCode());
  }
  if (file.ok()) return WriteResult(options, *file, streams);
  absl::Status status = file.status();
  if (const absl::Status health = check(); !health.ok()) status = health;
  return Fail(streams, "tune", std::string(status.message()),
              absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed);
}

int TuneOwnServices(const TuneOptions& options, const std::vector<std::string>& texts,
                    const ServeOptions& serve_options, const Streams& streams) {
  auto services = OwnServices::Create(serve_options, options.show_log);
  if (!services.ok()) {
    return Fail(streams, "tune", std::string(services.status().message()), kExitFailed);
  }
  std::atomic<int> signals{0};
  InterruptWatcher interrupts;  // before gRPC has threads
  interrupts.SetCallback([&](int) { ++signals; });
  const absl::Status started = services->Start(
      "tune", [&] { return signals.load(); }, streams);
  int exit_code = kExitFailed;
  if (started.ok()) {
    exit_code = TuneServer(
        options, texts, services->connection(), interrupts, [&] { return services->Check(); },
        streams);
  } else {
    Fail(streams, "tune",
         absl::IsCancelled(started) ? "interrupted: the services did not serve yet"
                                    : std::string(started.message()),
         exit_code);
  }
  services->Stop();
  return interrupts.last_signal() != 0 ? interrupts.ExitCode() : exit_code;
}

}  // namespace

int TuneCommand(int argc, const char* const* argv, const Streams& streams) {
  TuneOptions options;
  const char* const* const end = argv + argc;
  const char* const* const split = std::find(argv, end, kServicesFollow);
  if (split != end) options.service_arguments.assign(split + 1, end);
  common::Settings settings(
      "Finds the cheapest retrieval ratio of policy wave, by length of context, that keeps tokens "
      "of your text near enough to full attention's, and writes it to a file for 'retroinfer "
      "serve --retrieval'.",
      common::kBuildVersion);
  settings.app().footer(
      "Options of 'retroinfer serve' may follow --, for example:\n"
      "  retroinfer tune --model DIR --text book.txt --context 32K -- --index-dtype int8");
  AddOptions(&settings, &options);
  if (const auto done = ParseArguments(settings, static_cast<int>(split - argv), argv, streams)) {
    return *done;
  }
  const absl::Status valid = CheckOptions(&options, {argv + 1, split});
  if (!valid.ok()) return Fail(streams, "tune", std::string(valid.message()), kExitUsage);
  const auto texts = ReadTexts(options.texts);
  if (!texts.ok()) return Fail(streams, "tune", std::string(texts.status().message()), kExitUsage);
  if (options.model.empty()) {
    InterruptWatcher interrupts;  // before gRPC has threads
    return TuneServer(
        options, *texts, options.connection, interrupts, [] { return absl::OkStatus(); }, streams);
  }
  std::vector<std::string> arguments = {"--model", options.model, "--retrieval", "none"};
  arguments.insert(arguments.end(), options.service_arguments.begin(),
                   options.service_arguments.end());
  ServeOptions serve_options;
  if (const auto done = ParseOwnServices("tune --", arguments, &serve_options, streams)) {
    return *done;
  }
  return TuneOwnServices(options, *texts, serve_options, streams);
}

}  // namespace retroinfer::client
