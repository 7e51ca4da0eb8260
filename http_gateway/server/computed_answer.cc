#include "http_gateway/server/computed_answer.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {

ComputedAnswer::ComputedAnswer(GenerationContext* context, AnswerRecipient recipient)
    : context_(context),
      exchange_(std::move(recipient.exchange)),
      request_id_(std::move(recipient.request_id)),
      headers_(std::move(recipient.headers)),
      authorization_(std::move(recipient.authorization)),
      error_form_(recipient.error_form),
      arrival_(absl::Now()) {
  context_->metrics->OnGenerations(++context_->generations);
}

ComputedAnswer::~ComputedAnswer() { context_->metrics->OnGenerations(--context_->generations); }

void ComputedAnswer::Close() {
  exchange_ = nullptr;
  CancelCalls();
}

void ComputedAnswer::AddHeader(std::string name, std::string value) {
  headers_.emplace_back(std::move(name), std::move(value));
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
        const absl::StatusOr<std::string> name =
            context_->names->NameFor(options_.model, (*model)->info.model_name());
        if (!name.ok()) return Fail(name.status(), ErrorOrigin::kGateway);
        head_.model = *name;
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
