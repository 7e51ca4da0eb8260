// A conversation becomes a list of special tokens and runs of plain text. Everything between two
// special tokens is one run, role and content together, because that is what the tokenizer of
// Hugging Face sees: "user\n" and a content that begins with "\n" share a token.
#include "gpu_worker/tokenizer/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status/status_macros.h"
#include "gpu_worker/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr std::string_view kThinkEnd = "</think>";

// What Python's str.strip() drops: white space and four separators of ASCII.
bool IsStripped(char32_t code) { return IsWhiteSpace(code) || (code >= 0x1C && code <= 0x1F); }

std::string_view Strip(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::Kind::kCharacter || !IsStripped(step.code)) break;
    text.remove_prefix(step.length);
  }
  while (!text.empty()) {
    const Utf8Step step = LastUtf8(text);
    if (step.kind != Utf8Step::Kind::kCharacter || !IsStripped(step.code)) break;
    text.remove_suffix(step.length);
  }
  return text;
}

std::string_view StripNewLines(std::string_view text, bool front, bool back) {
  while (front && !text.empty() && text.front() == '\n') text.remove_prefix(1);
  while (back && !text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text;
}

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The text between the first `begin` and the next `end`; nothing if either is missing.
std::optional<std::string> Between(std::string_view text, std::string_view begin,
                                   std::string_view end) {
  const size_t from = text.find(begin);
  if (from == std::string_view::npos) return std::nullopt;
  text.remove_prefix(from + begin.size());
  const size_t to = text.find(end);
  if (to == std::string_view::npos) return std::nullopt;
  return std::string(text.substr(0, to));
}

// The text of the system message that a ChatML template writes out in one literal.
std::optional<std::string> DefaultSystem(std::string_view jinja) {
  constexpr std::string_view kBegin = "<|im_start|>system\n";
  constexpr std::string_view kEnd = "<|im_end|>";
  for (size_t at = jinja.find(kBegin); at != std::string_view::npos;
       at = jinja.find(kBegin, at + 1)) {
    const std::string_view rest = jinja.substr(at + kBegin.size());
    const std::string_view text = rest.substr(0, rest.find(kEnd));
    if (text.size() < rest.size() && text.find_first_of("'\"{}") == std::string_view::npos) {
      return std::string(text);
    }
  }
  return std::nullopt;
}

// What a ChatML template writes after the role of the answer that it asks for.
std::string AnswerPrefix(std::string_view jinja) {
  constexpr std::string_view kBegin = "<|im_start|>assistant\n";
  const size_t begin = jinja.find(kBegin, jinja.find("add_generation_prompt"));
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = jinja.substr(begin + kBegin.size());
  return std::string(rest.substr(0, rest.find_first_of("'\"")));
}

// An answer cut into its thought and the rest, as Qwen3's template does it.
struct Answer {
  std::string_view thought;
  std::string_view content;
};

Answer SplitThought(std::string_view text) {
  constexpr std::string_view kThinkBegin = "<think>";
  const size_t first_end = text.find(kThinkEnd);
  if (first_end == std::string_view::npos) return {.thought = {}, .content = text};
  std::string_view thought = StripNewLines(text.substr(0, first_end), false, true);
  if (const size_t begin = thought.rfind(kThinkBegin); begin != std::string_view::npos) {
    thought.remove_prefix(begin + kThinkBegin.size());
  }
  const std::string_view content = text.substr(text.rfind(kThinkEnd) + kThinkEnd.size());
  return {.thought = StripNewLines(thought, true, true),
          .content = StripNewLines(content, true, false)};
}

bool IsToolResponse(std::string_view content) {
  constexpr std::string_view kBegin = "<tool_response>";
  constexpr std::string_view kEnd = "</tool_response>";
  return content.starts_with(kBegin) && content.ends_with(kEnd);
}

// The index of the last message in which a user asks something; the last index if there is none.
size_t LastQueryIndex(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !IsToolResponse(messages[i].content)) return i;
  }
  return messages.size() - 1;
}

absl::Status CheckMessages(std::span<const ChatMessage> messages) {
  if (messages.empty()) return absl::InvalidArgumentError("messages: at least one is needed");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "]: the role \"", absl::CHexEscape(role.substr(0, 100)),
                       "\" is not supported; system, user and assistant are"));
    }
    if (absl::Status status = ValidateUtf8(messages[i].content); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "]: ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Collects tokens; text waits until the next special token or the end.
class ChatTemplate::Writer {
 public:
  explicit Writer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Text(std::string_view text) { text_.append(text); }

  absl::Status Special(int32_t id) {
    RETURN_IF_ERROR(FlushText({.add_special = false}));
    ids_.push_back(id);
    return absl::OkStatus();
  }

  absl::Status FlushText(EncodeOptions options) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer_.Encode(text_, options));
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    text_.clear();
    return absl::OkStatus();
  }

  std::vector<int32_t> TakeIds() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  std::string text_;
  std::vector<int32_t> ids_;
};

ChatTemplate ChatTemplate::Create(const Tokenizer& tokenizer) {
  ChatTemplate chat_template(tokenizer);
  if (!tokenizer.config().chat_template.has_value()) return chat_template;
  // Line ends are written as they are in some files and as "\n" of a Jinja string in others.
  const std::string jinja = absl::StrReplaceAll(*tokenizer.config().chat_template, {{"\\n", "\n"}});
  if (chat_template.RecognizeLlama3(jinja)) {
    chat_template.family_ = Family::kLlama3;
  } else if (chat_template.RecognizeChatMl(jinja)) {
    chat_template.family_ = Family::kChatMl;
  }
  chat_template.trims_ = Has(jinja, "|trim") || Has(jinja, "| trim");
  return chat_template;
}

bool ChatTemplate::RecognizeLlama3(const std::string& jinja) {
  const std::optional<int32_t> start = tokenizer_->SpecialId("<|start_header_id|>");
  const std::optional<int32_t> end = tokenizer_->SpecialId("<|end_header_id|>");
  const std::optional<int32_t> end_of_turn = tokenizer_->SpecialId("<|eot_id|>");
  if (!start.has_value() || !end.has_value() || !end_of_turn.has_value() ||
      !Has(jinja, "<|start_header_id|>") || !Has(jinja, "<|end_header_id|>\n\n") ||
      !Has(jinja, "<|eot_id|>")) {
    return false;
  }
  start_header_id_ = *start;
  end_header_id_ = *end;
  end_of_turn_id_ = *end_of_turn;
  if (Has(jinja, "bos_token") || Has(jinja, "<|begin_of_text|>")) bos_id_ = tokenizer_->bos_id();
  constexpr std::string_view kKnowledge = "Cutting Knowledge Date: ";
  if (const auto date = Between(jinja, kKnowledge, "\n"); date.has_value()) {
    knowledge_line_ = absl::StrCat(std::string(kKnowledge), *date, "\n");
    default_date_ = Between(jinja, "date_string = \"", "\"").value_or("26 Jul 2024");
    knows_today_ = Has(jinja, "strftime_now");
  }
  return true;
}

bool ChatTemplate::RecognizeChatMl(const std::string& jinja) {
  const std::optional<int32_t> start = tokenizer_->SpecialId("<|im_start|>");
  const std::optional<int32_t> end = tokenizer_->SpecialId("<|im_end|>");
  if (!start.has_value() || !end.has_value() || !Has(jinja, "<|im_start|>") ||
      !Has(jinja, "<|im_end|>")) {
    return false;
  }
  message_start_id_ = *start;
  message_end_id_ = *end;
  default_system_ = DefaultSystem(jinja);
  drops_thoughts_ = Has(jinja, "split('</think>')");
  keeps_last_thought_ = drops_thoughts_ && Has(jinja, "last_query_index");
  can_skip_thinking_ = Has(jinja, "enable_thinking");
  answer_prefix_ = AnswerPrefix(jinja);
  return true;
}

std::string_view ChatTemplate::family_name() const {
  switch (family_) {
    case Family::kLlama3:
      return "llama3";
    case Family::kChatMl:
      return "chatml";
    case Family::kPlain:
      return "plain";
  }
  return "";
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Encode(std::span<const ChatMessage> messages,
                                                          const ChatOptions& options) const {
  RETURN_IF_ERROR(CheckMessages(messages));
  Writer writer(*tokenizer_);
  switch (family_) {
    case Family::kLlama3:
      RETURN_IF_ERROR(WriteLlama3(messages, options, writer));
      break;
    case Family::kChatMl:
      RETURN_IF_ERROR(WriteChatMl(messages, options, writer));
      break;
    case Family::kPlain:
      RETURN_IF_ERROR(WritePlain(messages, writer));
      break;
  }
  return writer.TakeIds();
}

absl::Status ChatTemplate::WriteLlama3(std::span<const ChatMessage> messages,
                                       const ChatOptions& options, Writer& writer) const {
  const auto header = [&](std::string_view role) -> absl::Status {
    RETURN_IF_ERROR(writer.Special(start_header_id_));
    writer.Text(role);
    RETURN_IF_ERROR(writer.Special(end_header_id_));
    writer.Text("\n\n");
    return absl::OkStatus();
  };
  const auto content_of = [&](const ChatMessage& message) {
    return trims_ ? Strip(message.content) : std::string_view(message.content);
  };
  if (bos_id_.has_value()) RETURN_IF_ERROR(writer.Special(*bos_id_));
  if (!knowledge_line_.empty()) {
    std::string date = options.date;
    if (date.empty()) {
      date = knows_today_ ? absl::FormatTime("%d %b %Y", absl::Now(), absl::LocalTimeZone())
                          : default_date_;
    }
    RETURN_IF_ERROR(header("system"));
    writer.Text(knowledge_line_);
    writer.Text(absl::StrCat("Today Date: ", date, "\n\n"));
    if (messages.front().role == "system") {
      writer.Text(content_of(messages.front()));
      messages = messages.subspan(1);
    }
    RETURN_IF_ERROR(writer.Special(end_of_turn_id_));
  }
  for (const ChatMessage& message : messages) {
    RETURN_IF_ERROR(header(message.role));
    writer.Text(content_of(message));
    RETURN_IF_ERROR(writer.Special(end_of_turn_id_));
  }
  if (options.add_generation_prompt) RETURN_IF_ERROR(header("assistant"));
  return writer.FlushText({.add_special = false});
}

absl::Status ChatTemplate::WriteChatMl(std::span<const ChatMessage> messages,
                                       const ChatOptions& options, Writer& writer) const {
  const auto begin = [&](std::string_view role) -> absl::Status {
    RETURN_IF_ERROR(writer.Special(message_start_id_));
    writer.Text(role);
    writer.Text("\n");
    return absl::OkStatus();
  };
  const auto end = [&]() -> absl::Status {
    RETURN_IF_ERROR(writer.Special(message_end_id_));
    writer.Text("\n");
    return absl::OkStatus();
  };
  if (default_system_.has_value() && messages.front().role != "system") {
    RETURN_IF_ERROR(begin("system"));
    writer.Text(*default_system_);
    RETURN_IF_ERROR(end());
  }
  const size_t last_query_index = LastQueryIndex(messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    RETURN_IF_ERROR(begin(messages[i].role));
    std::string_view content = messages[i].content;
    if (trims_) content = Strip(content);
    if (messages[i].role == "assistant" && drops_thoughts_) {
      const Answer answer = SplitThought(content);
      content = answer.content;
      const bool is_last = i + 1 == messages.size();
      if (keeps_last_thought_ && i > last_query_index && (is_last || !answer.thought.empty())) {
        writer.Text("<think>\n");
        writer.Text(answer.thought);
        writer.Text("\n</think>\n\n");
        content = StripNewLines(content, true, false);
      }
    }
    writer.Text(content);
    RETURN_IF_ERROR(end());
  }
  if (options.add_generation_prompt) {
    RETURN_IF_ERROR(begin("assistant"));
    writer.Text(answer_prefix_);
    if (can_skip_thinking_ && !options.enable_thinking) writer.Text("<think>\n\n</think>\n\n");
  }
  return writer.FlushText({.add_special = false});
}

absl::Status ChatTemplate::WritePlain(std::span<const ChatMessage> messages, Writer& writer) const {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i > 0) writer.Text("\n");
    writer.Text(messages[i].content);
  }
  return writer.FlushText({.add_special = true});
}

}  // namespace retroinfer
