#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "client/command/number_format.h"
#include "client/generate/score_report.h"
#include "client/generate/scorer.h"
#include "common/build_info/build_info.h"
#include "common/rpc/policy_name.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

struct ScoreOptions {
  ConnectionOptions connection;
  std::string file;
  std::vector<std::string> policies = {"full", "wave"};
  int64_t context = 1;
  int64_t window = 0;  // 0: the model's length
  int64_t stride = 1024;
  bool parse_special = false;
  bool json = false;
  bool quiet = false;
  v1::ScoreRequest request;  // what all calls have in common
};

void AddOptions(common::Settings* settings, ScoreOptions* options) {
  CLI::App& app = settings->app();
  app.add_option("file", options->file, "A text, UTF-8")->required();
  app.add_option("--policy", options->policies,
                 absl::StrCat("Attention to score under: ", common::PolicyNameList(),
                              "; several with commas. Agreement is with the first one"))
      ->delimiter(',')
      ->check(CLI::IsMember(common::PolicyNames()));
  settings->AddTokenCount(
      "--window", &options->window,
      "Most tokens that a scored token and those before it may be; the server's longest context if "
      "0");
  settings->AddTokenCount(
      "--stride", &options->stride,
      "Tokens scored in a call; in texts longer than the window, how far it moves", 1);
  settings->AddTokenCount(
      "--context", &options->context,
      "Tokens at the beginning that are not scored: the others have at least so many before them, "
      "as far as the window reaches",
      1);
  app.add_option_function<std::string>(
         "--prefill",
         [options](const std::string& prefill) {
           options->request.mutable_attention()->set_prefill(
               prefill == "exact" ? v1::PREFILL_EXACT : v1::PREFILL_SPARSE);
         },
         "exact, or sparse: a long context attends to the blocks that matter (default: the "
         "server's)")
      ->check(CLI::IsMember({"exact", "sparse"}));
  app.add_option_function<double>(
      "--retrieval-ratio",
      [options](const double& ratio) {
        options->request.mutable_attention()->set_retrieval_ratio(ratio);
      },
      "wave: share of the clusters that is attended exactly");
  app.add_option_function<double>(
      "--estimation-ratio",
      [options](const double& ratio) {
        options->request.mutable_attention()->set_estimation_ratio(ratio);
      },
      "wave: share of the clusters that is estimated");
  app.add_option_function<int32_t>(
      "--priority", [options](const int32_t& value) { options->request.set_priority(value); },
      "Lower runs first");
  app.add_flag("--parse-special", options->parse_special,
               "Names of special tokens in the text become these tokens");
  app.add_flag("--json", options->json, "Write one JSON object instead of a table");
  app.add_flag("--quiet", options->quiet, "No progress on stderr");
  AddConnectionOptions(settings, &options->connection);
  AddContextAffinityOption(settings, &options->connection);
}

// Checks the settings against the text and the server.
absl::StatusOr<ScorePlan> PlanOf(const ScoreOptions& options, int64_t tokens,
                                 int64_t max_model_len) {
  ScorePlan plan = {.file = options.file,
                    .tokens = tokens,
                    .context = options.context,
                    .window = options.window == 0 ? max_model_len : options.window,
                    .stride = options.stride};
  if (plan.window > max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("--window is ", plan.window, ", the server takes ", max_model_len, " tokens"));
  }
  if (plan.window < 2) return absl::InvalidArgumentError("--window must be at least 2");
  // The default gives way to a small window; what was asked for does not.
  if (plan.stride >= plan.window) {
    if (options.stride != ScoreOptions().stride) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--stride is ", plan.stride, ", it must be below the window of ", plan.window));
    }
    plan.stride = std::max<int64_t>(1, plan.window / 2);
  }
  if (plan.tokens <= plan.context) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.file, " has ", plan.tokens, plan.tokens == 1 ? " token" : " tokens",
                     ", and ", plan.context,
                     " of them are context that is not scored (--context): there is nothing left"));
  }
  return plan;
}

grpc::Status ScoreUnder(const std::string& policy, const ScorePlan& plan,
                        const std::vector<int32_t>& tokens, const ScoreOptions& options,
                        const Streams& streams, Scorer& scorer, PolicyScores* scores) {
  scores->policy = policy;
  v1::ScoreRequest request = options.request;
  request.mutable_attention()->set_policy(*common::PolicyNamed(policy));
  request.set_logprobs(1);
  for (const ScoreWindow& window : PlanWindows(plan)) {
    SetWindow(tokens, window, &request);
    if (grpc::Status status = scorer.Score(request, window, &scores->tokens); !status.ok()) {
      return status;
    }
    if (options.quiet) continue;
    std::fprintf(streams.err, "%s: %s of %s tokens\n", policy.c_str(),
                 WithThousands(window.end - plan.context).c_str(),
                 WithThousands(plan.tokens - plan.context).c_str());
  }
  return grpc::Status::OK;
}

}  // namespace

int ScoreCommand(int argc, const char* const* argv, const Streams& streams) {
  ScoreOptions options;
  common::Settings settings(
      "Scores a text, token by token, as generating it would: perplexity by policy and by the "
      "length of the context.",
      common::kBuildVersion);
  AddOptions(&settings, &options);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  const auto fail = [&](absl::string_view message, int exit_code) {
    return Fail(streams, "score", std::string(message), exit_code);
  };
  InterruptWatcher interrupts;  // before gRPC has threads
  const auto text = ReadWholeFile(options.file);
  if (!text.ok()) return fail(text.status().message(), kExitUsage);
  if (text->empty()) return fail(absl::StrCat(options.file, " is empty"), kExitUsage);
  if (text->size() > Scorer::kTextBytesMax) {
    return fail(absl::StrCat(options.file, " has ", text->size() >> 20, " MiB, at most ",
                             Scorer::kTextBytesMax >> 20, " can be sent: divide it"),
                kExitUsage);
  }
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return fail(connection.status().message(), kExitUsage);
  Scorer scorer(**connection, absl::StrFormat("%016x", std::hash<std::string>()(*text)),
                options.parse_special, &interrupts);
  const auto fail_call = [&](const grpc::Status& status) {
    if (interrupts.last_signal() != 0) return fail("interrupted", interrupts.ExitCode());
    return fail((*connection)->Explain(status), kExitFailed);
  };

  std::vector<int32_t> tokens;
  v1::GetModelInfoResponse info;
  if (const auto status = scorer.GetModelInfo(&info); !status.ok()) return fail_call(status);
  if (const auto status = scorer.Tokenize(*text, &tokens); !status.ok()) return fail_call(status);
  const auto plan = PlanOf(options, std::ssize(tokens), info.max_model_len());
  if (!plan.ok()) return fail(plan.status().message(), kExitUsage);
  std::vector<PolicyScores> scores(options.policies.size());
  // Policy full comes last: it finds the contexts that the others have left in the cache.
  for (const bool is_full : {false, true}) {
    for (size_t i = 0; i < scores.size(); ++i) {
      if ((options.policies[i] == "full") != is_full) continue;
      const auto status =
          ScoreUnder(options.policies[i], *plan, tokens, options, streams, scorer, &scores[i]);
      if (!status.ok()) return fail_call(status);
    }
  }
  const std::string report =
      options.json ? ScoreJson(*plan, scores) + "\n" : ScoreTable(*plan, scores);
  if (const absl::Status written = WriteResults(report, streams.out); !written.ok()) {
    return fail(written.message(), kExitFailed);
  }
  return kExitOk;
}

}  // namespace retroinfer::client
