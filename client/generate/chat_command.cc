#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/prefill_progress_line.h"
#include "client/generate/generation.h"
#include "client/generate/line_editor.h"
#include "client/generate/request_flags.h"
#include "common/build_info/build_info.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

constexpr char kPrompt[] = "> ";
constexpr char kHelp[] =
    "Commands: /reset forgets the conversation, /file PATH sends a file, /stats shows the last "
    "answer's statistics,\n/help shows this. Ctrl-C cancels an answer, Ctrl-D ends.\n";

// Threads: one.
class ChatSession {
 public:
  ChatSession(const Connection& connection, const v1::GenerateRequest& settings, std::string system,
              const Streams& streams, InterruptWatcher* interrupts)
      : connection_(connection),
        request_(settings),
        system_(std::move(system)),
        streams_(streams),
        interrupts_(interrupts),
        shows_prompt_(IsTerminal(streams.in)) {
    Reset();
    if (shows_prompt_ && IsTerminal(streams.err)) {
      editor_ = LineEditor::Create(streams.in, streams.err, kPrompt);
    }
  }

  // Returns the exit code when the input has ended. Without a person at a terminal, a failed answer
  // ends the chat.
  int Run() {
    if (shows_prompt_) std::fputs(kHelp, streams_.err);
    while (const std::optional<std::string> line = ReadLine()) {
      const std::string text(absl::StripAsciiWhitespace(*line));
      if (text.empty() || HandleCommand(text)) continue;
      if (!Ask(text) && !shows_prompt_) {
        return interrupts_->last_signal() != 0 ? interrupts_->ExitCode() : kExitFailed;
      }
    }
    if (shows_prompt_) std::fputs("\n", streams_.err);
    return kExitOk;
  }

 private:
  void Reset() {
    request_.clear_messages();
    request_.mutable_messages();
    if (!system_.empty()) Add("system", system_);
  }

  void Add(const std::string& role, const std::string& content) {
    v1::Message* message = request_.mutable_messages()->add_messages();
    message->set_role(role);
    message->set_content(content);
  }

  // The next line; nothing at the end of the input.
  std::optional<std::string> ReadLine() {
    if (editor_ == nullptr) return ReadPlainLine();
    interrupts_->SetCallback([this](int) { editor_->Interrupt(); });
    std::string line;
    LineEditor::Result result = editor_->ReadLine(&line);
    while (result == LineEditor::Result::kInterrupted) {
      std::fputs("\n(Ctrl-D ends)\n", streams_.err);
      result = editor_->ReadLine(&line);
    }
    interrupts_->SetCallback(nullptr);
    if (result == LineEditor::Result::kEnd) return std::nullopt;
    return line;
  }

  std::optional<std::string> ReadPlainLine() {
    if (shows_prompt_) {
      std::fputs(kPrompt, streams_.err);
      std::fflush(streams_.err);
      // The terminal has thrown the line away already.
      interrupts_->SetCallback([this](int) {
        std::fprintf(streams_.err, "\n(Ctrl-D ends)\n%s", kPrompt);
        std::fflush(streams_.err);
      });
    }
    char* bytes = nullptr;
    size_t capacity = 0;
    const ssize_t size = ::getline(&bytes, &capacity, streams_.in);
    interrupts_->SetCallback(nullptr);
    const std::unique_ptr<char, void (*)(void*)> owner(bytes, &std::free);
    if (size < 0) return std::nullopt;
    return std::string(bytes, static_cast<size_t>(size));
  }

  // Returns whether `text` was a command.
  bool HandleCommand(const std::string& text) {
    if (text == "/reset") {
      Reset();
      std::fputs("(forgotten)\n", streams_.err);
    } else if (text == "/stats") {
      std::fprintf(streams_.err, "[%s]\n", last_stats_.c_str());
    } else if (text == "/help") {
      std::fputs(kHelp, streams_.err);
    } else if (text.rfind("/file ", 0) == 0) {
      const auto content = ReadWholeFile(std::string(absl::StripAsciiWhitespace(text.substr(6))));
      if (content.ok()) {
        Ask(*content);
      } else {
        std::fprintf(streams_.err, "%s\n", std::string(content.status().message()).c_str());
      }
    } else if (text.front() == '/') {
      std::fprintf(streams_.err, "unknown command %s\n%s", text.c_str(), kHelp);
    } else {
      return false;
    }
    return true;
  }

  // An answer that was cancelled stays in the conversation as far as it came; a turn that failed
  // leaves the conversation as it was. Returns false if it failed.
  bool Ask(const std::string& text) {
    Add("user", text);
    PrefillProgressLine progress(streams_.err, IsTerminal(streams_.err));
    GenerationCallbacks callbacks;
    callbacks.on_progress = [&](const v1::PrefillProgress& event) {
      if (IsTerminal(streams_.err)) progress.Show(event);
    };
    callbacks.on_text = [&](int, const std::string& piece) {
      progress.Clear();
      return WriteResults(piece, streams_.out).ok();
    };
    const GenerationOutcome outcome = RunGeneration(connection_, request_, callbacks, interrupts_);
    progress.Clear();
    const Continuation& answer = outcome.continuations[0];
    if (!answer.text.empty()) std::fputc('\n', streams_.out);
    std::fflush(streams_.out);
    const bool cancelled = outcome.status.error_code() == grpc::StatusCode::CANCELLED;
    if (outcome.status.ok() || (cancelled && !answer.text.empty())) {
      Add("assistant", answer.text);
      last_stats_ = cancelled ? "cancelled" : DescribeFinish(answer.finished);
      if (cancelled) std::fputs("(cancelled)\n", streams_.err);
      if (WasCut(outcome)) std::fputs("(cut by the server)\n", streams_.err);
      return !cancelled && !WasCut(outcome);
    }
    request_.mutable_messages()->mutable_messages()->RemoveLast();
    std::fprintf(streams_.err, "retroinfer chat: %s\n",
                 cancelled ? "cancelled" : connection_.Explain(outcome.status).c_str());
    return false;
  }

  const Connection& connection_;
  v1::GenerateRequest request_;
  const std::string system_;
  const Streams streams_;
  InterruptWatcher* const interrupts_;
  const bool shows_prompt_;
  std::unique_ptr<LineEditor> editor_;  // at a terminal
  std::string last_stats_ = "no answer yet";
};

}  // namespace

int ChatCommand(int argc, const char* const* argv, const Streams& streams) {
  ConnectionOptions connection_options;
  v1::GenerateRequest request;
  std::string system;
  common::Settings settings("Talks with the model, turn by turn.", common::kBuildVersion);
  settings.app().add_option("--system", system, "System message of the conversation");
  AddRequestFlags(&settings, &request);
  AddConnectionOptions(&settings, &connection_options);
  AddFleetOptions(&settings, &connection_options);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  InterruptWatcher interrupts;  // before gRPC has threads
  const auto connection = Connection::Open(connection_options);
  if (!connection.ok()) {
    return Fail(streams, "chat", std::string(connection.status().message()), kExitUsage);
  }
  request.set_return_progress(true);
  return ChatSession(**connection, request, system, streams, &interrupts).Run();
}

}  // namespace retroinfer::client
