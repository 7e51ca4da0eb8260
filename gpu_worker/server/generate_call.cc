// Who may touch `stream_`: the thread that has set write_in_flight_ or finish_called_ under the
// mutex. So there is one write at a time, nothing after Finish(), and no lock is held while gRPC
// runs. Continuations are opened before they are submitted, because their sinks may be called
// before Submit() of the engine returns.
#include "gpu_worker/server/generate_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/request_errors.h"

namespace retroinfer {
namespace {

// A client gives its call up at its own deadline, which is a little earlier than the one that the
// server has made of the time left: that time is rounded up, by at most 1 %, and travels.
absl::Duration DeadlineSlack(absl::Duration given) {
  return std::max(absl::Milliseconds(100), given / 50);
}

}  // namespace

class GenerateCall::Sink : public GenerationSink {
 public:
  // `scored`: of a call of Score, which continuations of the client are the request's.
  Sink(std::shared_ptr<GenerateCall> call, int index, const GenerationRequest& request,
       std::string tenant, int64_t earlier_tokens, std::optional<std::vector<int>> scored)
      : call_(std::move(call)),
        index_(index),
        engine_request_id_(request.request_id),
        tenant_(std::move(tenant)),
        earlier_tokens_(earlier_tokens),
        attention_(request.attention),
        is_scoring_(IsScoring(request)),
        scored_(std::move(scored)) {}

  void OnProgress(const PrefillProgress& progress) override {
    cached_tokens_ = progress.cached_tokens;
    if (scored_.has_value() && index_ > 0) return;  // one speaks for all
    call_->AddProgress(index_, progress);
  }

  void OnOutput(const OutputDelta& delta) override {
    if (delta.continuation == OutputDelta::kOfPrompt) return call_->AddPrompt(delta);
    const int64_t num_tokens = static_cast<int64_t>(delta.tokens.size());
    if (scored_.has_value()) {
      completion_tokens_ += num_tokens;
      const int index = scored_->at(static_cast<size_t>(delta.continuation));
      return call_->AddOutput(index, delta, cached_tokens_, completion_tokens_);
    }
    if (num_tokens > 0) {
      const absl::Time now = common::SteadyNow();
      if (completion_tokens_ > 0) {
        call_->context_.observer->OnTokenInterval(now - last_token_, num_tokens);
      }
      last_token_ = now;
      completion_tokens_ += num_tokens;
    }
    call_->AddOutput(index_, delta, cached_tokens_, completion_tokens_);
  }

  void OnFinish(const GenerationResult& result) override {
    RequestSummary summary{engine_request_id_,
                           tenant_,
                           attention_,
                           result,
                           common::SteadyNow() - call_->arrival_,
                           is_scoring_,
                           earlier_tokens_};
    if (result.reason == FinishReason::kCancelled && call_->EndedByDeadline()) {
      summary.result.reason = FinishReason::kDeadline;
    }
    // One after the other: who reads the metrics after the stream's end finds the request there.
    TaskPool* const sender = call_->context_.sender;
    sender->Post([call = std::move(call_), index = index_, summary = std::move(summary), result] {
      if (summary.result.reason == FinishReason::kRefused) {
        call->context_.observer->OnRefused(summary.engine_request_id, summary.result.status);
      } else {
        call->context_.observer->OnFinished(summary);
      }
      call->AddFinished(index, result);
    });
  }

 private:
  std::shared_ptr<GenerateCall> call_;
  const int index_;
  const std::string engine_request_id_;
  const std::string tenant_;
  const int64_t earlier_tokens_;
  const AttentionSettings attention_;
  const bool is_scoring_;
  const std::optional<std::vector<int>> scored_;
  int64_t cached_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  absl::Time last_token_;
};

std::string GenerateCall::EngineRequestId(const std::string& request_id, int index) {
  return index == 0 ? request_id : absl::StrCat(request_id, "/", index);
}

GenerateCall::GenerateCall(const Context& context, EventStream* stream, absl::Time deadline)
    : context_(context),
      stream_(stream),
      arrival_(common::SteadyNow()),
      deadline_(deadline),
      share_(context.pending) {}

void GenerateCall::Submit(Submission submission) {
  RI_CHECK(!submission.continuations.empty());
  {
    absl::MutexLock lock(&mutex_);
    const std::vector<int32_t>& prompt = submission.continuations.front().prompt;
    queue_ = std::make_unique<ResponseQueue>(ResponseQueue::Settings{
        submission.request_id, std::ssize(prompt), submission.want_progress,
        submission.want_logprobs, submission.tokenizer, prompt.empty() ? 0 : prompt.front()});
    unscored_ = submission.scored.size();
    deadline_is_of_call_ = submission.deadline_is_of_call;
  }
  int index = 0;
  for (GenerationRequest& request : submission.continuations) {
    const std::string id = request.request_id;
    std::optional<std::vector<int>> scored;
    if (!submission.scored.empty()) {
      scored = std::move(submission.scored[static_cast<size_t>(index)]);
    }
    // Continuations have their prompt in common: the first one speaks for it.
    const int64_t earlier_tokens = index == 0 ? submission.earlier_tokens : 0;
    auto sink = std::make_shared<Sink>(shared_from_this(), index++, request, submission.tenant,
                                       earlier_tokens, std::move(scored));
    absl::Status ended;  // cancelled, or an earlier continuation failed
    {
      absl::MutexLock lock(&mutex_);
      ended = status_;
      if (ended.ok()) {
        ++open_;
        engine_ids_.push_back(id);
      }
    }
    if (!ended.ok()) {
      // Else the continuations before this one count.
      if (index == 1) context_.observer->OnRefused(submission.request_id, ended);
      break;
    }
    const absl::Status status = context_.engine->Submit(std::move(request), std::move(sink));
    if (status.ok()) continue;
    context_.observer->OnRefused(submission.request_id, status);
    absl::MutexLock lock(&mutex_);
    --open_;
    engine_ids_.pop_back();
    SetError(status);
    break;
  }
  {
    absl::MutexLock lock(&mutex_);
    submitted_ = true;
  }
  Advance();
}

void GenerateCall::Refuse(const std::string& request_id, const absl::Status& status) {
  context_.observer->OnRefused(request_id, status);
  {
    absl::MutexLock lock(&mutex_);
    SetError(status);
    submitted_ = true;
  }
  Advance();
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    write_in_flight_ = false;
    outgoing_bytes_ = 0;
    if (queue_ != nullptr) (void)share_.Set(queue_->bytes());
    if (!ok) OnClientGone("the client is gone");
  }
  Advance();
}

void GenerateCall::OnCancelled() {
  {
    absl::MutexLock lock(&mutex_);
    OnClientGone("the client cancelled the call");
  }
  Advance();
}

void GenerateCall::OnClientGone(const char* message) {
  discard_ = true;
  if (queue_ != nullptr) queue_->Clear();
  if (common::SteadyNow() >= deadline_ - DeadlineSlack(deadline_ - arrival_)) {
    SetError(
        common::WithReason(absl::DeadlineExceededError("the call's deadline passed"), "DEADLINE"));
  } else {
    SetError(common::WithReason(absl::CancelledError(message), "CANCELLED"));
  }
}

bool GenerateCall::EndedByDeadline() {
  absl::MutexLock lock(&mutex_);
  return absl::IsDeadlineExceeded(status_);
}

bool GenerateCall::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return discard_;
}

void GenerateCall::AddProgress(int index, const PrefillProgress& progress) {
  absl::MutexLock lock(&mutex_);
  if (discard_) return;
  queue_->AddProgress(index, progress);
  PostAdvance();
}

void GenerateCall::AddOutput(int index, const OutputDelta& delta, int64_t cached_tokens,
                             int64_t completion_tokens) {
  absl::MutexLock lock(&mutex_);
  if (discard_) return;
  queue_->AddOutput(index, delta, cached_tokens, completion_tokens);
  LimitQueue();
  PostAdvance();
}

void GenerateCall::AddFinished(int index, const GenerationResult& result) {
  absl::MutexLock lock(&mutex_);
  --open_;
  if (result.reason == FinishReason::kError || result.reason == FinishReason::kRefused) {
    SetError(result.status.ok() ? absl::InternalError("the engine gave no reason") : result.status);
  } else if (result.reason == FinishReason::kDeadline && deadline_is_of_call_) {
    SetError(common::WithReason(
        absl::DeadlineExceededError(
            absl::StrCat("the call's deadline passed after ", result.completion_tokens, " tokens")),
        "DEADLINE"));
  } else if (result.reason == FinishReason::kCancelled && result.completion_tokens == 0 &&
             !discard_ && context_.draining != nullptr && *context_.draining) {
    SetError(DrainingError());
  } else if (unscored_ > 0) {
    AddToTotal(result);
    if (--unscored_ == 0 && !discard_) queue_->AddFinished(0, total_);
  } else if (!discard_) {
    queue_->AddFinished(index, result);
  }
  PostAdvance();
}

void GenerateCall::AddPrompt(const OutputDelta& delta) {
  absl::MutexLock lock(&mutex_);
  if (discard_) return;
  queue_->AddPrompt(delta);
  LimitQueue();
  PostAdvance();
}

void GenerateCall::AddToTotal(const GenerationResult& result) {
  if (total_.prompt_tokens == 0 || total_.reason == FinishReason::kLength) {
    total_.reason = result.reason;
  }
  const double steps = static_cast<double>(total_.completion_tokens + result.completion_tokens);
  if (steps > 0) {
    total_.kv_read_ratio = (total_.kv_read_ratio * static_cast<double>(total_.completion_tokens) +
                            result.kv_read_ratio * static_cast<double>(result.completion_tokens)) /
                           steps;
  }
  if (result.unseen.has_value()) {
    UnseenMass& sum = total_.unseen.has_value() ? *total_.unseen : total_.unseen.emplace();
    sum.mean = (sum.mean * static_cast<double>(total_.completion_tokens) +
                result.unseen->mean * static_cast<double>(result.completion_tokens)) /
               steps;
    sum.largest = std::max(sum.largest, result.unseen->largest);
  }
  if (result.completion_tokens > 0) {
    total_.time_to_first_token =
        total_.completion_tokens == 0
            ? result.time_to_first_token
            : std::min(total_.time_to_first_token, result.time_to_first_token);
  }
  total_.completion_tokens += result.completion_tokens;
  total_.prompt_tokens = result.prompt_tokens;
  total_.cached_tokens = std::max(total_.cached_tokens, result.cached_tokens);
  total_.queue_time = std::max(total_.queue_time, result.queue_time);
  total_.prefill_time = std::max(total_.prefill_time, result.prefill_time);
  total_.decode_time = std::max(total_.decode_time, result.decode_time);
}

void GenerateCall::LimitQueue() {
  const bool in_budget = share_.Set(queue_->bytes() + outgoing_bytes_);
  if (queue_->bytes() <= context_.max_pending_bytes && in_budget) return;
  discard_ = true;
  SetError(common::WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "the client has left ", queue_->bytes() + outgoing_bytes_, " bytes of output unread, ",
          in_budget ? absl::StrCat("the limit is ", context_.max_pending_bytes)
                    : "which is more than its share of what all clients together may leave",
          ": read the stream faster")),
      "SLOW_CLIENT"));
  (void)share_.Set(outgoing_bytes_);
  queue_->Clear();
}

void GenerateCall::SetError(const absl::Status& status) {
  if (!status_.ok()) return;  // the first one counts
  status_ = status;
  abort_wanted_ = true;
}

void GenerateCall::PostAdvance() {
  // A write in flight goes on in OnWriteDone(), unless there is something to abort.
  if (advance_posted_ || (write_in_flight_ && !abort_wanted_)) return;
  advance_posted_ = true;
  context_.sender->Post([call = shared_from_this()] {
    {
      absl::MutexLock lock(&call->mutex_);
      call->advance_posted_ = false;
    }
    call->Advance();
  });
}

void GenerateCall::Advance() {
  std::vector<std::string> to_abort;
  bool write = false;
  bool finish = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (abort_wanted_ && submitted_) {
      abort_wanted_ = false;
      if (open_ > 0) to_abort = engine_ids_;
    }
    if (!write_in_flight_ && !finish_called_ && submitted_) {
      const size_t bytes_before = queue_ == nullptr ? 0 : queue_->bytes();
      if (queue_ != nullptr && queue_->Pop(&outgoing_)) {
        write = write_in_flight_ = true;
        outgoing_bytes_ = bytes_before - queue_->bytes();
      } else if (open_ == 0) {
        finish = finish_called_ = true;
        status = status_;
      }
    }
  }
  for (const std::string& id : to_abort) context_.engine->Abort(id);
  if (write) stream_->Write(&outgoing_);
  if (finish) stream_->Finish(status);
}

}  // namespace retroinfer
