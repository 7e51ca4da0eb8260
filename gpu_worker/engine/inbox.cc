#include "gpu_worker/engine/inbox.h"

#include "gpu_worker/engine/request_errors.h"

namespace retroinfer {

absl::Status Inbox::Submit(Submission submission) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return DrainingError();
  if (live_.contains(submission.request.request_id)) {
    return RequestIdInUseError(submission.request.request_id);
  }
  if (live_.size() >= max_live_) return QueueFullError(live_.size(), max_live_);
  live_.insert(submission.request.request_id);
  mail_.submissions.push_back(std::move(submission));
  return absl::OkStatus();
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
  return std::exchange(mail_, Mail{});
}

void Inbox::Forget(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  live_.erase(std::string(request_id));
  // An abort that came too late is not for the next request of that name.
  std::erase(mail_.aborts, request_id);
}

Inbox::Untaken Inbox::untaken() const {
  absl::MutexLock lock(&mutex_);
  if (mail_.submissions.empty()) return {};
  return {static_cast<int64_t>(mail_.submissions.size()), mail_.submissions.front().submitted};
}

bool Inbox::AnyLive() const {
  absl::MutexLock lock(&mutex_);
  return !live_.empty();
}

}  // namespace retroinfer
