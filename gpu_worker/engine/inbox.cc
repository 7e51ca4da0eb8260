#include "gpu_worker/engine/inbox.h"

#include <algorithm>
#include <iterator>

#include "common/status/status_macros.h"
#include "gpu_worker/engine/request_errors.h"

namespace retroinfer {

absl::Status Inbox::Submit(Submission submission) {
  const GenerationRequest& request = submission.request;
  absl::MutexLock lock(&mutex_);
  if (closed_) return DrainingError();
  if (live_.contains(request.request_id)) return RequestIdInUseError(request.request_id);
  RETURN_IF_ERROR(CheckLimits(request));
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const std::string tenant = request.tenant == nullptr ? "" : request.tenant->name;
  Usage& usage = tenants_[tenant];
  ++usage.requests;
  usage.waiting_tokens += tokens;
  waiting_tokens_ += tokens;
  live_.emplace(request.request_id, LiveEntry{tenant, tokens});
  mail_.submissions.push_back(std::move(submission));
  return absl::OkStatus();
}

absl::Status Inbox::CheckLimits(const GenerationRequest& request) const {
  if (live_.size() >= limits_.max_live) {
    return QueueFullError(live_.size(), limits_.max_live, expected_wait_);
  }
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  // Written so that no sum can overflow.
  const auto is_too_much = [tokens](int64_t waiting, int64_t most) {
    return waiting > 0 && waiting > most - tokens;
  };
  if (request.tenant != nullptr) {
    const auto found = tenants_.find(request.tenant->name);
    const Usage usage = found == tenants_.end() ? Usage() : found->second;
    if (usage.requests >= request.tenant->max_requests) {
      return TenantQueueFullError(*request.tenant, usage.requests, expected_wait_);
    }
    if (is_too_much(usage.waiting_tokens, request.tenant->max_waiting_tokens)) {
      return TenantWaitingTokensFullError(*request.tenant, tokens, usage.waiting_tokens,
                                          expected_wait_);
    }
  }
  if (is_too_much(waiting_tokens_, limits_.max_waiting_tokens)) {
    return WaitingTokensFullError(tokens, waiting_tokens_, limits_.max_waiting_tokens,
                                  expected_wait_);
  }
  if (expected_wait_ > limits_.max_expected_wait) {
    return WaitTooLongError(expected_wait_, limits_.max_expected_wait);
  }
  return absl::OkStatus();
}

void Inbox::PromptRead(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(std::string(request_id));
  if (found == live_.end()) return;
  const int64_t tokens = std::exchange(found->second.waiting_tokens, 0);
  waiting_tokens_ -= tokens;
  tenants_[found->second.tenant].waiting_tokens -= tokens;
}

void Inbox::SetExpectedWait(absl::Duration wait) {
  absl::MutexLock lock(&mutex_);
  expected_wait_ = wait;
}

bool Inbox::Abort(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  std::string id(request_id);
  if (!live_.contains(id)) return false;
  mail_.aborts.push_back(std::move(id));
  return true;
}

void Inbox::Answer(ReserveAnswer answer) {
  absl::MutexLock lock(&mutex_);
  mail_.answers.push_back(std::move(answer));
}

void Inbox::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

void Inbox::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
}

Mail Inbox::Take(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  if (timeout > absl::ZeroDuration()) {
    const auto has_mail = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return woken_ || !mail_.submissions.empty() || !mail_.aborts.empty() ||
             !mail_.answers.empty();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&has_mail), timeout);
  }
  woken_ = false;
  taken_ = UncountedNow();
  return std::exchange(mail_, Mail{});
}

void Inbox::Forget(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = live_.find(std::string(request_id)); found != live_.end()) {
    const LiveEntry& entry = found->second;
    const auto tenant = tenants_.find(entry.tenant);
    waiting_tokens_ -= entry.waiting_tokens;
    tenant->second.waiting_tokens -= entry.waiting_tokens;
    if (--tenant->second.requests == 0) tenants_.erase(tenant);
    live_.erase(found);
  }
  // An abort that came too late is not for the next request of that name.
  std::erase(mail_.aborts, request_id);
}

Inbox::Uncounted Inbox::UncountedNow() const {
  Uncounted uncounted = taken_;
  uncounted.count += std::ssize(mail_.submissions);
  if (!mail_.submissions.empty()) {
    uncounted.oldest = std::min(uncounted.oldest, mail_.submissions.front().submitted);
  }
  return uncounted;
}

void Inbox::Publish(absl::FunctionRef<void()> publish) {
  absl::MutexLock lock(&mutex_);
  publish();
  taken_ = {};
}

void Inbox::ReadUncounted(absl::FunctionRef<void(const Uncounted&)> read) const {
  absl::MutexLock lock(&mutex_);
  read(UncountedNow());
}

bool Inbox::AnyLive() const {
  absl::MutexLock lock(&mutex_);
  return !live_.empty();
}

}  // namespace retroinfer
