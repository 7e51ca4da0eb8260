#include "http_gateway/server/scoring.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "http_gateway/json/fields.h"
#include "http_gateway/server/error_response.h"

namespace retroinfer::gateway {

namespace v1 = generation::v1;

Scoring::Scoring(GenerationContext* context, std::shared_ptr<Exchange> exchange,
                 std::string request_id, HttpHeaders headers, std::string authorization)
    : context_(context),
      exchange_(std::move(exchange)),
      request_id_(std::move(request_id)),
      headers_(std::move(headers)),
      authorization_(std::move(authorization)),
      arrival_(absl::Now()) {
  context_->metrics->OnGenerations(++context_->generations);
}

Scoring::~Scoring() {
  Close();
  context_->metrics->OnGenerations(--context_->generations);
}

void Scoring::Close() {
  exchange_ = nullptr;
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->Cancel();
}

void Scoring::OnClientGone() {
  context_->metrics->OnClientGone();
  Close();
}

void Scoring::Start(ScoreCall call) {
  options_ = std::move(call.options);
  call.request.set_request_id(request_id_);
  const ScoredList prompt(call.request.prompt_logprobs() > 0);
  if (call.request.has_prompt_logprobs()) prompt_.push_back(prompt);
  continuations_.resize(static_cast<size_t>(call.request.continuations_size()),
                        ScoredList(call.request.logprobs() > 0));
  context_->models->Get(
      false, [self = shared_from_this(), request = std::move(call.request)](const auto& model) {
        if (self->exchange_ == nullptr) return;
        if (!model.ok()) return self->Fail(model.status(), ErrorOrigin::kWorker);
        const std::string& served = (*model)->info.model_name();
        if (const absl::Status known = CheckModelName(self->options_.model, served); !known.ok()) {
          return self->Fail(known, ErrorOrigin::kGateway);
        }
        self->head_ = {absl::StrCat("score-", self->request_id_), "score",
                       absl::ToUnixSeconds(self->arrival_), served};
        self->stream_ = self->context_->worker->Score(request, self->options_.context,
                                                      self->authorization_, self.get());
      });
}

void Scoring::OnEvent(v1::ScoreResponse&& event) {
  const std::shared_ptr<Scoring> self = shared_from_this();
  if (const absl::Status status = Take(event); !status.ok()) {
    return Fail(status, ErrorOrigin::kWorker);
  }
  if (Bytes() > kAnswerBytesMax) {
    return Fail(ParamError("continuations",
                           absl::StrCat("the answer has over ", kAnswerBytesMax >> 20,
                                        " MiB: measure less in one request, or ask for fewer "
                                        "alternatives"),
                           "ANSWER_TOO_LARGE"),
                ErrorOrigin::kGateway);
  }
  stream_->ReadNext();
}

absl::Status Scoring::Take(const v1::ScoreResponse& event) {
  if (event.has_prompt() && !prompt_.empty()) return prompt_.front().Append(event.prompt());
  if (event.has_continuation()) {
    const int index = event.continuation().continuation();
    if (index < 0 || static_cast<size_t>(index) >= continuations_.size()) {
      return absl::InternalError("the worker measured a continuation that nobody asked for");
    }
    return continuations_[static_cast<size_t>(index)].Append(event.continuation());
  }
  if (!event.has_finished()) return absl::OkStatus();
  finished_ = event.finished();
  switch (finished_.reason()) {
    case v1::FINISH_REASON_LENGTH:
      return absl::OkStatus();
    case v1::FINISH_REASON_DEADLINE:
      return common::WithReason(
          absl::DeadlineExceededError(
              absl::StrCat("the time was over after ", finished_.scored_tokens(), " tokens")),
          "DEADLINE");
    default:
      return common::WithReason(absl::UnavailableError("the worker ended the request: it was "
                                                       "aborted there, or the worker is shutting "
                                                       "down"),
                                "ABORTED");
  }
}

size_t Scoring::Bytes() const {
  size_t bytes = 0;
  for (const ScoredList& list : prompt_) bytes += list.bytes();
  for (const ScoredList& list : continuations_) bytes += list.bytes();
  return bytes;
}

void Scoring::OnEnd(const absl::Status& status) {
  const std::shared_ptr<Scoring> self = shared_from_this();
  stream_ = nullptr;
  if (!status.ok()) return Fail(status, ErrorOrigin::kWorker);
  if (finished_.reason() == v1::FINISH_REASON_LENGTH) return Respond();
  Fail(absl::InternalError("the worker ended the request without a word"), ErrorOrigin::kWorker);
}

void Scoring::Respond() {
  std::string body = absl::StrCat(head_.Json(), R"(,"prompt":)");
  if (prompt_.empty()) {
    body.append("null");
  } else {
    absl::StrAppend(&body, "{", prompt_.front().Members(), "}");
  }
  body.append(R"(,"continuations":[)");
  for (size_t i = 0; i < continuations_.size(); ++i) {
    absl::StrAppend(&body, i == 0 ? "" : ",", R"({"index":)", i, ",", continuations_[i].Members(),
                    "}");
  }
  absl::StrAppend(&body, R"(],"usage":)", UsageJson(UsageOf(finished_)), "}");
  std::exchange(exchange_, nullptr)->Respond({.headers = headers_, .body = std::move(body)});
}

void Scoring::Fail(const absl::Status& status, ErrorOrigin origin) {
  const std::shared_ptr<Exchange> exchange = exchange_;
  Close();
  if (exchange != nullptr) exchange->Respond(ErrorResponse(status, origin, headers_));
}

}  // namespace retroinfer::gateway
