#include "text/tokenizer/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/hash/sha256.h"
#include "common/status/status_macros.h"
#include "text/jinja/characters.h"
#include "text/jinja/globals.h"
#include "text/tokenizer/chat_variables.h"
#include "text/tokenizer/special_runs.h"

namespace retroinfer {
namespace {

using jinja::Text;

// Grows with the conversation: a template that copies a long one a few times is a fair one.
jinja::Limits LimitsFor(size_t input_bytes) {
  jinja::Limits limits;
  limits.steps_max = (uint64_t{1} << 24) + 4 * input_bytes;
  limits.memory_bytes_max = (size_t{64} << 20) + 16 * input_bytes;
  limits.output_bytes_max = (size_t{1} << 20) + 4 * input_bytes;
  return limits;
}

size_t BytesOf(std::span<const ChatMessage> messages, const ChatOptions& options) {
  size_t bytes = options.tools.size() + options.arguments.size();
  for (const ChatMessage& message : messages) {
    bytes += message.content.size() + message.tool_calls.size() + message.name.size() +
             message.tool_call_id.size() + message.reasoning_content.size();
  }
  return bytes;
}

Text TrimEnd(const Text& text) {
  size_t end = text.size();
  while (end > 0) {
    const jinja::Character last =
        jinja::LastCharacter(std::string_view(text.bytes()).substr(0, end));
    if (!jinja::IsSpace(last.code)) break;
    end -= last.length;
  }
  return text.Part(0, end);
}

// Cuts the text at the mark of the message that is to be continued.
absl::StatusOr<Text> CutAtMark(const Text& text) {
  std::string_view mark = kContinuationMark;
  mark.remove_suffix(1);
  const size_t at = text.bytes().rfind(mark);
  if (at == std::string::npos) {
    return absl::InvalidArgumentError(
        "continue_final_message: the chat template does not write the last message's text");
  }
  const bool keeps_space = std::string_view(text.bytes()).substr(at).starts_with(kContinuationMark);
  return keeps_space ? text.Part(0, at) : TrimEnd(text.Part(0, at));
}

std::string FingerprintOf(const std::string& text, const std::string& tool_text) {
  const common::Hash256 hash = common::Sha256("chat template").Add(text).Add(tool_text).Finish();
  constexpr size_t kDigits = 16;
  return hash.ToHex().substr(0, kDigits);
}

}  // namespace

ChatTemplate ChatTemplate::Create(const Tokenizer& tokenizer) {
  ChatTemplate chat_template(tokenizer);
  const TokenizerConfig& config = tokenizer.config();
  if (config.chat_template.has_value() || config.tool_template.has_value()) {
    chat_template.source_ =
        config.template_source.empty() ? "tokenizer_config.json" : config.template_source;
  }
  chat_template.SetTemplate(config.chat_template, config.tool_template);
  return chat_template;
}

absl::StatusOr<ChatTemplate> ChatTemplate::CreateFromFile(const Tokenizer& tokenizer,
                                                          const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadTemplateFile(file));
  ChatTemplate chat_template(tokenizer);
  chat_template.source_ = file.string();
  chat_template.SetTemplate(text, std::nullopt);
  RETURN_IF_ERROR(chat_template.program_.status());
  return chat_template;
}

void ChatTemplate::SetTemplate(const std::optional<std::string>& text,
                               const std::optional<std::string>& tool_text) {
  program_ = absl::FailedPreconditionError(
      "this model has no chat template, so it does not say how a conversation becomes a prompt: "
      "send `text` with the prompt as the model wants it, or start the server with --chat-template "
      "FILE (a Jinja template)");
  if (text.has_value()) program_ = Compile(*text);
  if (tool_text.has_value()) tool_program_ = Compile(*tool_text);
  if (text.has_value() || tool_text.has_value()) {
    fingerprint_ = FingerprintOf(text.value_or(""), tool_text.value_or(""));
  }
}

ChatTemplate::SharedProgram ChatTemplate::Compile(const std::string& text) {
  absl::StatusOr<jinja::Program> program = jinja::Program::Parse(text);
  if (!program.ok()) {
    problem_ = std::string(program.status().message());
    return absl::FailedPreconditionError(
        absl::StrCat("the chat template (", source_, ") cannot be run: ", problem_,
                     ". Start the server with --chat-template FILE to use another one"));
  }
  if (!program->gaps().empty()) {
    problem_ = absl::StrCat("not supported: ", absl::StrJoin(program->gaps(), "; "));
  }
  return std::make_shared<const jinja::Program>(*std::move(program));
}

absl::Status ChatTemplate::Explain(const absl::Status& error) const {
  const std::string message(error.message());
  if (jinja::IsRaisedError(error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the chat template refuses this conversation, ", message));
  }
  const std::string text = absl::StrCat("the chat template (", source_, "), ", message);
  switch (error.code()) {
    case absl::StatusCode::kUnimplemented:
      return absl::FailedPreconditionError(
          absl::StrCat(text,
                       ": not supported here. Start the server with --chat-template FILE to "
                       "use another one"));
    case absl::StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InvalidArgumentError(text);
  }
}

absl::StatusOr<Text> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                          const ChatOptions& options) const {
  const bool with_tools = !options.tools.empty() && tool_program_.has_value();
  const SharedProgram& program = with_tools ? *tool_program_ : program_;
  RETURN_IF_ERROR(program.status());
  const auto render = [&](CallArgumentsForm form, bool& ran) -> absl::StatusOr<Text> {
    jinja::Workspace workspace(LimitsFor(BytesOf(messages, options)),
                               options.now.value_or(absl::Now()), absl::LocalTimeZone());
    ASSIGN_OR_RETURN(const jinja::Program::Variables variables,
                     MakeChatVariables(workspace, tokenizer_->config(), messages, options, form));
    ran = true;
    return (*program)->Render(workspace, variables);
  };
  bool ran = false;
  absl::StatusOr<Text> text = render(CallArgumentsForm::kObject, ran);
  if (ran && absl::IsInvalidArgument(text.status()) && !jinja::IsRaisedError(text.status()) &&
      HasToolCalls(messages)) {
    // Perhaps this template adds the arguments of calls to text.
    absl::StatusOr<Text> other = render(CallArgumentsForm::kText, ran);
    if (other.ok()) text = std::move(other);
  }
  if (!text.ok()) return ran ? Explain(text.status()) : text.status();
  return options.continue_final_message ? CutAtMark(*text) : *std::move(text);
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Encode(std::span<const ChatMessage> messages,
                                                          const ChatOptions& options) const {
  ASSIGN_OR_RETURN(const Text text, Render(messages, options));
  return EncodeText(text);
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::EncodeText(const Text& text) const {
  SpecialRuns special;
  for (const Text::Run& run : text.runs()) {
    special.Append(run.end - special.size(), run.of_template);
  }
  return tokenizer_->EncodeRendered(text.bytes(), special);
}

}  // namespace retroinfer
