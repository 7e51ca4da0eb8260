#include "http_gateway/server/generation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/status/error_reason.h"
#include "http_gateway/api/api_error.h"
#include "http_gateway/api/chat_plan.h"
#include "http_gateway/api/choices_writer.h"
#include "http_gateway/api/messages_writer.h"
#include "http_gateway/api/responses_writer.h"
#include "http_gateway/json/fields.h"
#include "http_gateway/server/error_response.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kDetokenize[] = "/retroinfer.generation.v1.GenerationService/Detokenize";
constexpr absl::Duration kTokenizerTimeout = absl::Seconds(60);

const char* IdPrefix(ChatForm form) {
  switch (form) {
    case ChatForm::kResponses:
      return "resp_";
    case ChatForm::kMessages:
      return "msg_";
    case ChatForm::kChat:
      break;
  }
  return "chatcmpl-";
}

}  // namespace

struct Generation::Call : public GenerateEvents {
  Call(Generation* generation, size_t index) : generation(generation), index(index) {}
  ~Call() override {
    if (stream != nullptr) stream->Cancel();
  }
  void OnEvent(v1::GenerateResponse&& event) override {
    waits = true;
    generation->OnEvent(index, std::move(event));
  }
  void OnEnd(const absl::Status& status) override {
    stream = nullptr;
    generation->OnCallEnd(index, status);
  }

  Generation* const generation;
  const size_t index;
  GenerateStream* stream = nullptr;  // null: has ended
  bool waits = false;                // for ReadNext()
};

Generation::Generation(GenerationContext* context, AnswerRecipient recipient)
    : ComputedAnswer(context, std::move(recipient)), last_write_(common::SteadyNow()) {}

Generation::~Generation() { Close(); }

void Generation::CancelCalls() {
  for (const auto& call : calls_) {
    if (call->stream != nullptr) std::exchange(call->stream, nullptr)->Cancel();
  }
}

void Generation::Start(CompletionRequest request) {
  completion_ = std::move(request);
  options_ = completion_.options;
  requests_ = std::move(completion_.calls);
  head_ = {absl::StrCat("cmpl-", request_id_), "text_completion", absl::ToUnixSeconds(arrival_),
           ""};
  AwaitModel(false, [this](const ModelState&) {
    echoes_.resize(requests_.size());
    PrepareEcho(0);
  });
}

void Generation::PrepareEcho(size_t index) {
  while (completion_.echo && index < requests_.size() && requests_[index].has_text()) {
    echoes_[index] = requests_[index].text();
    ++index;
  }
  if (!completion_.echo || index == requests_.size()) {
    PrepareCompletions();
    return StartCalls();
  }
  v1::DetokenizeRequest request;
  *request.mutable_token_ids() = requests_[index].token_ids().ids();
  context_->worker->Call<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      kDetokenize, request, kTokenizerTimeout,
      [this, self = shared_from_this(), index](const absl::Status& status,
                                               v1::DetokenizeResponse response) {
        if (exchange_ == nullptr) return;
        if (!status.ok()) return Fail(status, ErrorOrigin::kWorker);
        echoes_[index] = std::move(*response.mutable_text());
        PrepareEcho(index + 1);
      });
}

int Generation::Continuations() const {
  return requests_.front().sampling().has_n() ? requests_.front().sampling().n() : 1;
}

void Generation::PrepareCompletions() {
  const int n = Continuations();
  std::vector<std::unique_ptr<Choice>> choices;
  for (size_t i = 0; i < requests_.size() * static_cast<size_t>(n); ++i) {
    choices.push_back(MakeCompletionChoice({.index = static_cast<int>(i),
                                            .streams = options_.stream,
                                            .logprobs = requests_.front().sampling().has_logprobs(),
                                            .echo = echoes_[i / static_cast<size_t>(n)]}));
  }
  writer_ = MakeChoicesWriter({.head = head_,
                               .include_usage = options_.include_usage,
                               .return_progress = options_.return_progress},
                              std::move(choices));
}

void Generation::Start(ChatRequest request) {
  chat_ = std::move(request);
  options_ = chat_.options;
  head_ = {absl::StrCat(IdPrefix(chat_.form), request_id_),
           options_.stream ? "chat.completion.chunk" : "chat.completion",
           absl::ToUnixSeconds(arrival_), ""};
  AwaitModel(true, [this](const ModelState& model) { PrepareChat(model); });
}

void Generation::PrepareChat(const ModelState& model) {
  absl::StatusOr<ChatPlan> plan = PlanChat(model.chat, &chat_);
  if (!plan.ok()) return Fail(plan.status(), ErrorOrigin::kGateway);
  options_.constraint_param = plan->constraint_param;
  if (plan->relaxed.has_value()) {
    relaxed_ = chat_.call;
    *relaxed_->mutable_constraint() = *std::move(plan->relaxed);
  }
  requests_.push_back(std::move(chat_.call));
  MakeChatWriter(plan->reader);
  StartCalls();
}

void Generation::MakeChatWriter(const AnswerReaderOptions& reader) {
  switch (chat_.form) {
    case ChatForm::kResponses:
      writer_ = MakeResponsesWriter({.head = head_,
                                     .streams = options_.stream,
                                     .reader = reader,
                                     .echo = std::move(chat_.echo)});
      return;
    case ChatForm::kMessages:
      writer_ = MakeMessagesWriter({.head = head_, .streams = options_.stream, .reader = reader});
      return;
    case ChatForm::kChat:
      break;
  }
  std::vector<std::unique_ptr<Choice>> choices;
  for (int i = 0; i < Continuations(); ++i) {
    choices.push_back(MakeChatChoice(
        {.index = i, .streams = options_.stream, .logprobs = chat_.logprobs, .reader = reader}));
  }
  writer_ = MakeChoicesWriter({.head = head_,
                               .include_usage = options_.include_usage,
                               .return_progress = options_.return_progress},
                              std::move(choices));
}

void Generation::StartCalls() {
  calls_started_ = true;
  if (!options_.stream) writer_->Begin();
  for (size_t i = 0; i < requests_.size(); ++i) {
    v1::GenerateRequest& request = requests_[i];
    request.set_request_id(requests_.size() == 1 ? request_id_ : absl::StrCat(request_id_, "-", i));
    calls_.push_back(std::make_unique<Call>(this, i));
    StartCall(i, &request);
  }
  requests_.resize(1);  // the prompts are not needed any more
  const v1::SamplingOptions sampling = requests_.front().sampling();
  requests_.front().Clear();
  *requests_.front().mutable_sampling() = sampling;
}

void Generation::StartCall(size_t index, v1::GenerateRequest* request) {
  request->set_return_progress(options_.stream);
  Call& call = *calls_[index];
  call.stream = context_->worker->Generate(*request, options_.context, authorization_, &call);
}

void Generation::OnEvent(size_t index, v1::GenerateResponse&& event) {
  const auto self = shared_from_this();
  const size_t n = static_cast<size_t>(Continuations());
  const size_t choice_index = index * n + static_cast<size_t>(event.index());
  if (event.index() < 0 || static_cast<size_t>(event.index()) >= n) {
    return Fail(absl::InternalError("the worker sent a continuation that nobody asked for"),
                ErrorOrigin::kWorker);
  }
  relaxed_.reset();  // the constraint was taken
  if (options_.stream) BeginStream();
  switch (event.event_case()) {
    case v1::GenerateResponse::kProgress:
      writer_->Progress(choice_index, event.progress());
      break;
    case v1::GenerateResponse::kPrompt:
      OnPrompt(index, event.prompt());
      break;
    case v1::GenerateResponse::kOutput:
      writer_->Output(choice_index, event.output());
      break;
    case v1::GenerateResponse::kFinished:
      usage_.Add(event.finished(), event.index() == 0);
      if (FinishReasonText(event.finished().reason()).empty()) {
        return Fail(AbortedByWorker(), ErrorOrigin::kWorker);
      }
      writer_->Finish(choice_index, event.finished());
      break;
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  Send();
  Call& call = *calls_[index];
  if (exchange_ == nullptr || call.stream == nullptr) return;
  if (options_.stream && exchange_->unsent_bytes() > kUnsentMax) return;  // OnSent() goes on
  call.waits = false;
  call.stream->ReadNext();
}

// The prompt's continuations have its scores in common.
void Generation::OnPrompt(size_t call, const v1::ScoredTokens& tokens) {
  const size_t n = static_cast<size_t>(Continuations());
  for (size_t i = call * n; i < (call + 1) * n; ++i) writer_->Prompt(i, tokens);
  if (writer_->logprobs_bytes() <= kLogprobsBytesMax) return;
  Fail(ParamError("logprobs",
                  absl::StrCat("the prompts' log-probabilities take over ", kLogprobsBytesMax >> 20,
                               " MiB: send fewer prompts, ask for fewer alternatives, or stream"),
                  "ANSWER_TOO_LARGE"),
       ErrorOrigin::kGateway);
}

void Generation::OnSent() {
  for (const auto& call : calls_) {
    if (call->stream == nullptr || !call->waits) continue;
    call->waits = false;
    call->stream->ReadNext();
  }
}

void Generation::BeginStream() {
  if (streaming_ || exchange_ == nullptr) return;
  streaming_ = true;
  HttpHeaders headers = headers_;
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");  // nginx would keep the events
  exchange_->BeginStream("text/event-stream; charset=utf-8", headers);
  writer_->Begin();
  Send();
}

void Generation::Send() {
  const std::string_view text = writer_->unsent();
  if (text.empty()) return;
  if (exchange_ != nullptr) {
    last_write_ = common::SteadyNow();
    context_->metrics->OnStreamBytes(text.size());
    exchange_->Write(text);
  }
  writer_->ClearUnsent();
}

void Generation::OnCallEnd(size_t call, const absl::Status& status) {
  const auto self = shared_from_this();
  if (exchange_ == nullptr) return;
  if (status.ok()) {
    if (++calls_ended_ == calls_.size()) Complete();
    return;
  }
  common::ErrorReason reason = common::ReasonOf(status);
  if (reason.reason != "INVALID_CONSTRAINT") return Fail(status, ErrorOrigin::kWorker);
  if (relaxed_.has_value()) {
    v1::GenerateRequest relaxed = *std::exchange(relaxed_, std::nullopt);
    relaxed.set_request_id(request_id_);
    return StartCall(call, &relaxed);
  }
  if (!options_.constraint_param.empty()) reason.metadata["param"] = options_.constraint_param;
  Fail(common::WithReason(status, reason.reason, reason.metadata), ErrorOrigin::kWorker);
}

void Generation::Complete() {
  const std::shared_ptr<Exchange> exchange = exchange_;
  if (options_.stream) {
    BeginStream();
    writer_->End(usage_.Total());
    Send();
    exchange_ = nullptr;
    exchange->End();
    return;
  }
  exchange_ = nullptr;
  exchange->Respond({.headers = headers_, .body = writer_->Whole(usage_.Total())});
}

void Generation::Fail(const absl::Status& status, ErrorOrigin origin) {
  const auto self = shared_from_this();
  const std::shared_ptr<Exchange> exchange = exchange_;
  Close();
  if (exchange == nullptr) return;
  if (!streaming_) return exchange->Respond(ErrorResponse(status, origin, headers_, error_form_));
  writer_->ClearUnsent();
  writer_->Fail(ToApiError(status, origin, error_form_));
  exchange->Write(writer_->unsent());
  exchange->End();
}

void Generation::OnTick(absl::Time now) {
  if (exchange_ == nullptr || !options_.stream || !calls_started_) return;
  if (now - last_write_ < context_->keepalive) return;
  BeginStream();
  last_write_ = now;
  writer_->KeepAlive();
  Send();
}

}  // namespace retroinfer::gateway
