#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/prefill_progress_line.h"
#include "client/generate/generation.h"
#include "client/generate/request_flags.h"
#include "common/build_info/build_info.h"
#include "common/files/named_stream.h"
#include "common/rpc/grpc_status.h"
#include "common/status/errno_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

struct GenerateOptions {
  ConnectionOptions connection;
  std::string prompt;
  std::string file;
  std::string system;
  bool chat = false;
  bool raw = false;
  bool json = false;
  std::string json_file;
  bool quiet = false;
  int32_t n = 1;
};

void AddOptions(common::Settings* settings, GenerateOptions* options,
                v1::GenerateRequest* request) {
  CLI::App& app = settings->app();
  app.add_option("prompt", options->prompt,
                 "The prompt; '-' or nothing reads it from the standard input");
  app.add_option("--file", options->file,
                 "Begin the prompt with this file's text; the prompt follows on a line of its own");
  CLI::Option* const raw = app.add_flag(
      "--raw", options->raw,
      "Continue the text as it is, instead of asking through the model's chat template");
  app.add_flag("--chat", options->chat,
               "Fail where the model has no chat template, instead of continuing the text")
      ->excludes(raw);
  app.add_option("--system", options->system, "System message; implies --chat")->excludes(raw);
  app.add_option("--n", options->n, "Continuations to generate")->check(CLI::Range(1, 16));
  app.add_flag("--json", options->json,
               "Write one JSON object with text and statistics instead of streaming the text");
  app.add_option("--json-file", options->json_file,
                 "Write that object to this file, besides streaming the text");
  app.add_flag("--quiet", options->quiet, "No progress and no statistics on stderr");
  AddRequestFlags(settings, request);
  AddConnectionOptions(settings, &options->connection);
  AddFleetOptions(settings, &options->connection);
}

absl::StatusOr<std::string> ReadAll(std::FILE* stream) {
  std::string text;
  char buffer[1 << 16];
  while (const size_t size = std::fread(buffer, 1, sizeof(buffer), stream)) {
    text.append(buffer, size);
  }
  if (std::ferror(stream)) return common::ErrnoStatus(errno, "reading the standard input");
  return text;
}

absl::StatusOr<std::string> ReadPrompt(const GenerateOptions& options, const Streams& streams) {
  std::string text;
  if (!options.file.empty()) {
    ASSIGN_OR_RETURN(text, ReadWholeFile(options.file));
    if (!options.prompt.empty() && !text.empty() && text.back() != '\n') text += '\n';
  }
  const bool from_stdin = options.prompt == "-" || (options.prompt.empty() && options.file.empty());
  if (!from_stdin) return absl::StrCat(text, options.prompt);
  if (options.prompt.empty() && IsTerminal(streams.in)) {
    return absl::InvalidArgumentError(
        "there is no prompt: give one as argument, with --file, or on the standard input");
  }
  ASSIGN_OR_RETURN(const std::string piped, ReadAll(streams.in));
  return text + piped;
}

void FillInput(const GenerateOptions& options, std::string prompt, v1::GenerateRequest* request) {
  if (options.raw) {
    request->set_text(std::move(prompt));
    return;
  }
  v1::Messages* messages = request->mutable_messages();
  if (!options.system.empty()) {
    v1::Message* system = messages->add_messages();
    system->set_role("system");
    system->set_content(options.system);
  }
  v1::Message* user = messages->add_messages();
  user->set_role("user");
  user->set_content(std::move(prompt));
}

// Streams one continuation as it comes; several are printed one after the other at the end.
// `*written` says whether all of the text has arrived; when not, the call is cancelled.
GenerationOutcome Stream(const Connection& connection, const v1::GenerateRequest& request,
                         const GenerateOptions& options, const Streams& streams,
                         InterruptWatcher* interrupts, absl::Status* written) {
  PrefillProgressLine progress(options.quiet ? nullptr : streams.err, IsTerminal(streams.err));
  GenerationCallbacks callbacks;
  callbacks.on_progress = [&](const v1::PrefillProgress& event) { progress.Show(event); };
  callbacks.on_text = [&](int, const std::string& text) {
    progress.Clear();
    if (options.json || options.n > 1) return true;
    *written = WriteResults(text, streams.out);
    return written->ok();
  };
  return RunGeneration(connection, request, callbacks, interrupts);
}

// Whether the server refused a chat because its model has no chat template at all. A template that
// cannot be run is another matter: the answer to another prompt than was meant would hide that.
bool LacksTemplate(const grpc::Status& status) {
  const common::ErrorReason reason = common::ReasonOf(common::FromGrpcStatus(status));
  const auto source = reason.metadata.find("chat_template");
  return reason.reason == "CHAT_TEMPLATE" && source != reason.metadata.end() &&
         source->second == "none";
}

// As a chat; as a text to continue if that is asked for, or if the model knows no chats and none
// was insisted on.
GenerationOutcome Ask(const Connection& connection, const GenerateOptions& options,
                      const Streams& streams, v1::GenerateRequest* request,
                      InterruptWatcher* interrupts, absl::Status* written) {
  GenerationOutcome outcome = Stream(connection, *request, options, streams, interrupts, written);
  const bool insists = options.raw || options.chat || !options.system.empty();
  if (insists || !LacksTemplate(outcome.status)) return outcome;
  if (!options.quiet) {
    std::fprintf(streams.err, "[the model has no chat template: the text is continued as it is]\n");
  }
  std::string prompt = request->messages().messages(0).content();
  request->set_text(std::move(prompt));
  return Stream(connection, *request, options, streams, interrupts, written);
}

void PrintTexts(const GenerationOutcome& outcome, const Streams& streams) {
  for (size_t i = 0; i < outcome.continuations.size(); ++i) {
    std::fprintf(streams.out, "--- %zu\n%s\n", i, outcome.continuations[i].text.c_str());
  }
}

int Report(const v1::GenerateRequest& request, const GenerationOutcome& outcome,
           const GenerateOptions& options, const Streams& streams) {
  if (options.json) {
    std::fprintf(streams.out, "%s\n", FinishJson(request, outcome).c_str());
  } else if (options.n > 1) {
    PrintTexts(outcome, streams);
  } else if (!outcome.continuations[0].text.empty() &&
             outcome.continuations[0].text.back() != '\n') {
    std::fputc('\n', streams.out);
  }
  std::fflush(streams.out);
  if (!options.json_file.empty()) {
    const absl::Status written = common::WriteNamedOutput(
        options.json_file, absl::StrCat(FinishJson(request, outcome), "\n"));
    if (!written.ok())
      return Fail(streams, "generate", std::string(written.message()), kExitFailed);
  }
  if (!options.quiet && !options.json) {
    for (const Continuation& continuation : outcome.continuations) {
      std::fprintf(streams.err, "[%s]\n", DescribeFinish(continuation.finished).c_str());
    }
  }
  if (WasCut(outcome)) {
    return Fail(streams, "generate", "the server has ended the answer before it was complete",
                kExitFailed);
  }
  return kExitOk;
}

}  // namespace

int GenerateCommand(int argc, const char* const* argv, const Streams& streams) {
  GenerateOptions options;
  v1::GenerateRequest request;
  common::Settings settings(
      "Asks the model through its chat template and streams the answer; --raw continues a text.",
      common::kBuildVersion);
  AddOptions(&settings, &options, &request);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  const auto fail = [&](const absl::Status& status, int exit_code) {
    return Fail(streams, "generate", std::string(status.message()), exit_code);
  };
  InterruptWatcher interrupts;  // before gRPC has threads
  auto prompt = ReadPrompt(options, streams);
  if (!prompt.ok()) return fail(prompt.status(), kExitUsage);
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return fail(connection.status(), kExitUsage);

  FillInput(options, *std::move(prompt), &request);
  if (options.n > 1) request.mutable_sampling()->set_n(options.n);
  request.set_return_progress(!options.quiet);
  absl::Status written;
  const GenerationOutcome outcome =
      Ask(**connection, options, streams, &request, &interrupts, &written);
  if (!written.ok()) return fail(written, kExitFailed);
  if (!outcome.status.ok()) {
    if (!outcome.continuations[0].text.empty()) std::fputc('\n', streams.out);
    std::fflush(streams.out);
    if (interrupts.last_signal() != 0) {
      return Fail(streams, "generate", "interrupted", interrupts.ExitCode());
    }
    return Fail(streams, "generate", (*connection)->Explain(outcome.status), kExitFailed);
  }
  return Report(request, outcome, options, streams);
}

}  // namespace retroinfer::client
