#include "http_gateway/worker/model_watch.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "http_gateway/api/tag_search.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kGetModelInfo[] = "/retroinfer.generation.v1.GenerationService/GetModelInfo";
constexpr char kTokenize[] = "/retroinfer.generation.v1.GenerationService/Tokenize";
constexpr char kDetokenize[] = "/retroinfer.generation.v1.GenerationService/Detokenize";
constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr char kThinkTag[] = "<think>";
constexpr char kThinkEndTag[] = "</think>";
constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"look_up","description":"Looks a word up.",)"
    R"("parameters":{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}}}])";

// Mistral's templates want ids of nine characters.
constexpr char kCalls[] = R"([{"id":"abcdefghi","type":"function",)"
                          R"("function":{"name":"look_up","arguments":"{\"word\":\"x\"}"}}])";

std::string TemplateName(const v1::GetModelInfoResponse& info) {
  return absl::StrCat(info.model_name(), "\n", info.chat_template_fingerprint());
}

// Mistral's form has two kinds, of which the template shows one.
ToolForm FormFor(ToolForm said, ToolForm seen) {
  const bool is_kind = said == ToolForm::kMistral && seen == ToolForm::kMistralArgs;
  return is_kind ? seen : said;
}

}  // namespace

ToolForm ToolFormOfPrompt(const std::string& prompt) {
  const auto has = [&prompt](const char* text) { return absl::StrContains(prompt, text); };
  // Another form lies within the same tag: <function=name><parameter=...>.
  if (has("<tool_call>")) return has("<function=") ? ToolForm::kQwenCoder : ToolForm::kHermes;
  if (has("\"name\": function name") && has("\"parameters\": dictionary")) return ToolForm::kLlama;
  if (has("[TOOL_CALLS]")) return has("[ARGS]") ? ToolForm::kMistralArgs : ToolForm::kMistral;
  return ToolForm::kNone;
}

ThinkingOpening ThinkingOfPrompt(const std::string& prompt) {
  const std::string_view text = WithoutTrailingSpace(prompt);
  if (text.ends_with(kThinkTag)) return ThinkingOpening::kOpened;
  return text.ends_with(kThinkEndTag) ? ThinkingOpening::kClosed : ThinkingOpening::kUnknown;
}

// Renders a short conversation five times, and reads what came out. What a template refuses counts
// as not there. The fourth time it has a function in it, the fifth a call of that, too: what a
// template tells the model to write counts for more than how it writes earlier calls.
class ModelWatch::Probe : public std::enable_shared_from_this<ModelWatch::Probe> {
 public:
  Probe(WorkerClient& worker, std::function<void(bool known, const ChatFormat&)> done)
      : worker_(worker), done_(std::move(done)) {}

  void Next() {
    if (step_ == kSteps) return done_(known_, format_);
    v1::TokenizeRequest request;
    v1::Messages& messages = *request.mutable_messages();
    v1::Message& message = *messages.add_messages();
    message.set_role("user");
    message.set_content("Hello");
    if (step_ == 1 || step_ == 2) messages.set_enable_thinking(step_ == 2);
    if (step_ >= 3) messages.set_tools(kTools);
    if (step_ == 4) {
      v1::Message& call = *messages.add_messages();
      call.set_role("assistant");
      call.set_tool_calls(kCalls);
    }
    worker_.Call<v1::TokenizeRequest, v1::TokenizeResponse>(
        kTokenize, request, kTimeout,
        [self = shared_from_this()](const absl::Status& status, v1::TokenizeResponse response) {
          if (absl::IsUnavailable(status)) self->known_ = false;
          if (!status.ok()) return self->Seen("");
          self->ToText(response);
        });
  }

 private:
  static constexpr int kSteps = 5;

  void ToText(const v1::TokenizeResponse& tokens) {
    v1::DetokenizeRequest request;
    *request.mutable_token_ids() = tokens.token_ids();
    worker_.Call<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        kDetokenize, request, kTimeout,
        [self = shared_from_this()](const absl::Status&, v1::DetokenizeResponse response) {
          self->Seen(response.text());
        });
  }

  void Seen(const std::string& prompt) {
    if (step_ < 3) {
      format_.thinking[step_] = ThinkingOfPrompt(prompt);
    } else if (format_.tool_form == ToolForm::kNone) {
      format_.tool_form = ToolFormOfPrompt(prompt);
    }
    ++step_;
    Next();
  }

  WorkerClient& worker_;
  const std::function<void(bool known, const ChatFormat&)> done_;
  bool known_ = true;
  int step_ = 0;
  ChatFormat format_;
};

bool ModelWatch::IsFresh(absl::Duration age) const {
  return state_ != nullptr && absl::Now() - state_->since < age;
}

void ModelWatch::Get(bool with_chat, Callback done, absl::Duration age) {
  if (IsFresh(age) && (!with_chat || state_->has_chat)) return done(state_);
  waiting_.emplace_back(with_chat, std::move(done));
  if (asking_info_ || asking_chat_) return;
  asking_info_ = true;
  worker_.Call<v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
      kGetModelInfo, {}, kTimeout,
      [this](const absl::Status& status, v1::GetModelInfoResponse info) {
        OnInfo(status, std::move(info));
      });
}

void ModelWatch::OnInfo(const absl::Status& status, v1::GetModelInfoResponse info) {
  asking_info_ = false;
  if (!status.ok()) {
    state_ = nullptr;  // what comes back may be another model
    return AnswerWaiting(status);
  }
  auto state = std::make_shared<ModelState>();
  if (state_ != nullptr && state_->has_chat && TemplateName(state_->info) == TemplateName(info)) {
    state->chat = state_->chat;
    state->has_chat = true;
  }
  state->info = std::move(info);
  state->since = absl::Now();
  state_ = state;
  bool chat_wanted = false;
  for (const auto& [with_chat, done] : waiting_) chat_wanted = chat_wanted || with_chat;
  if (!chat_wanted || state->has_chat) return AnswerWaiting(absl::OkStatus());
  asking_chat_ = true;
  std::make_shared<Probe>(worker_, [this, name = TemplateName(state->info)](
                                       bool known, const ChatFormat& chat) {
    OnChat(known ? name : "", chat);
  })->Next();
}

void ModelWatch::OnChat(const std::string& template_name, const ChatFormat& chat) {
  asking_chat_ = false;
  auto state = std::make_shared<ModelState>(*state_);
  state->chat = chat;
  if (form_.has_value()) state->chat.tool_form = FormFor(*form_, chat.tool_form);
  state->has_chat = TemplateName(state->info) == template_name;
  state->since = absl::Now();
  state_ = state;
  AnswerWaiting(absl::OkStatus());
}

void ModelWatch::AnswerWaiting(const absl::Status& status) {
  auto waiting = std::exchange(waiting_, {});
  const std::shared_ptr<const ModelState> state = state_;
  for (auto& [with_chat, done] : waiting) {
    if (status.ok()) {
      done(state);
    } else {
      done(status);
    }
  }
}

}  // namespace retroinfer::gateway
