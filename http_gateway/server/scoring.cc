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

Scoring::Scoring(GenerationContext* context, AnswerRecipient recipient)
    : ComputedAnswer(context, std::move(recipient)) {}

Scoring::~Scoring() { Close(); }

void Scoring::CancelCalls() {
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->Cancel();
}

void Scoring::Start(ScoreCall call) {
  options_ = std::move(call.options);
  call.request.set_request_id(request_id_);
  const ScoredList prompt(call.request.prompt_logprobs() > 0);
  if (call.request.has_prompt_logprobs()) prompt_.push_back(prompt);
  continuations_.resize(static_cast<size_t>(call.request.continuations_size()),
                        ScoredList(call.request.logprobs() > 0));
  head_ = {absl::StrCat("score-", request_id_), "score", absl::ToUnixSeconds(arrival_), ""};
  AwaitModel(false, [this, request = std::move(call.request)](const ModelState&) {
    stream_ = context_->worker->Score(request, options_.context, authorization_, this);
  });
}

void Scoring::OnEvent(v1::ScoreResponse&& event) {
  const auto self = shared_from_this();
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
      return AbortedByWorker();
  }
}

size_t Scoring::Bytes() const {
  size_t bytes = 0;
  for (const ScoredList& list : prompt_) bytes += list.bytes();
  for (const ScoredList& list : continuations_) bytes += list.bytes();
  return bytes;
}

void Scoring::OnEnd(const absl::Status& status) {
  const auto self = shared_from_this();
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
  if (exchange != nullptr) exchange->Respond(ErrorResponse(status, origin, headers_, error_form_));
}

}  // namespace retroinfer::gateway
