#include "http_gateway/server/computed_answer.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {

ComputedAnswer::ComputedAnswer(GenerationContext* context, std::shared_ptr<Exchange> exchange,
                               std::string request_id, HttpHeaders headers,
                               std::string authorization)
    : context_(context),
      exchange_(std::move(exchange)),
      request_id_(std::move(request_id)),
      headers_(std::move(headers)),
      authorization_(std::move(authorization)),
      arrival_(absl::Now()) {
  context_->metrics->OnGenerations(++context_->generations);
}

ComputedAnswer::~ComputedAnswer() { context_->metrics->OnGenerations(--context_->generations); }

void ComputedAnswer::Close() {
  exchange_ = nullptr;
  CancelCalls();
}

void ComputedAnswer::OnClientGone() {
  context_->metrics->OnClientGone();
  Close();
}

void ComputedAnswer::OnShutdown(const absl::Status& status) { Fail(status, ErrorOrigin::kGateway); }

void ComputedAnswer::AwaitModel(bool with_chat, std::function<void(const ModelState&)> next) {
  context_->models->Get(
      with_chat, [this, self = shared_from_this(), next = std::move(next)](const auto& model) {
        if (exchange_ == nullptr) return;
        if (!model.ok()) return Fail(model.status(), ErrorOrigin::kWorker);
        const std::string& served = (*model)->info.model_name();
        if (const absl::Status known = CheckModelName(options_.model, served); !known.ok()) {
          return Fail(known, ErrorOrigin::kGateway);
        }
        head_.model = served;
        next(**model);
      });
}

absl::Status ComputedAnswer::AbortedByWorker() {
  return common::WithReason(
      absl::UnavailableError("the worker ended the request: it was aborted there, or the worker "
                             "is shutting down"),
      "ABORTED");
}

}  // namespace retroinfer::gateway
