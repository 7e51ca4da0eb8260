#include "kv_store_service/persistence/persister.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

Persister::Persister(PersisterOptions options, SegmentStorage* storage, DiskBudget* budget)
    : options_(std::move(options)), storage_(*storage), budget_(budget) {
  thread_ = std::thread([this] { Run(); });
}

Persister::~Persister() { Stop(); }

void Persister::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
    stop_deadline_ = common::SteadyNow() + options_.stop_timeout;
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  if (unwritten_ == 0) return;
  spdlog::warn(
      "durable segments: stopped with {} segments ({} bytes) not written; they will be computed "
      "afresh",
      unwritten_, unwritten_bytes_);
}

void Persister::Offer(PersistRequest request) {
  Enqueue(std::move(request), options_.mode == PersistMode::kWriteThrough);
}

void Persister::Persist(PersistRequest request) {
  Enqueue(std::move(request), options_.mode != PersistMode::kOff);
}

void Persister::Enqueue(PersistRequest request, bool allowed) {
  absl::Status refusal;
  {
    absl::MutexLock lock(&mutex_);
    if (!allowed) {
      refusal = absl::FailedPreconditionError("the persistence mode does not write this segment");
    } else if (stopping_ || options_.now() < retry_at_) {
      refusal = absl::UnavailableError(stopping_ ? "durable segments: stopping"
                                                 : "durable segments: the disk failed recently");
      ++stats_.dropped_total;
    } else if (queue_.size() >= options_.max_queued) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("durable segments: ", queue_.size(), " segments wait to be written"));
      ++stats_.dropped_total;
    } else {
      ++stats_.queued;
      stats_.queued_bytes += request.image.size();
      queue_.push_back(std::move(request));
      return;
    }
  }
  request.done(std::move(refusal));
}

void Persister::Run() {
  while (true) {
    PersistRequest request;
    bool refuse;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Persister::WorkOrStop));
      if (queue_.empty()) return;
      request = std::move(queue_.front());
      queue_.pop_front();
      refuse = options_.now() < retry_at_ || common::SteadyNow() >= stop_deadline_;
    }
    const absl::Time begin = common::SteadyNow();
    absl::Status status = refuse
                              ? absl::UnavailableError(
                                    "durable segments: the disk failed recently, or it is too late")
                              : Write(request);
    const uint64_t bytes = request.image.size();
    {
      absl::MutexLock lock(&mutex_);
      if (refuse) {
        ++stats_.dropped_total;
      } else {
        RecordResult(status, bytes, common::SteadyNow() - begin);
      }
      if (stopping_ && !status.ok()) {
        ++unwritten_;
        unwritten_bytes_ += bytes;
      }
    }
    request.done(std::move(status));
    absl::MutexLock lock(&mutex_);
    --stats_.queued;
    stats_.queued_bytes -= bytes;
  }
}

absl::Status Persister::Write(const PersistRequest& request) {
  if (storage_.Peek(request.record.name).has_value()) return absl::OkStatus();
  if (budget_ != nullptr) {
    absl::Status room =
        budget_->MakeRoom(request.image.size(), request.record.salt_hash, absl::Now());
    if (absl::IsResourceExhausted(room)) {
      // A limit of ours, not a broken disk: the next segment may be smaller or another tenant's.
      return absl::FailedPreconditionError(room.message());
    }
    RETURN_IF_ERROR(room);
  }
  return storage_.Put(request.record, request.token_ids, request.image);
}

void Persister::RecordResult(const absl::Status& status, uint64_t bytes, absl::Duration took) {
  if (status.ok()) {
    ++stats_.persisted_total;
    stats_.persisted_bytes_total += bytes;
    stats_.write_seconds_total += absl::ToDoubleSeconds(took);
    backoff_ = absl::ZeroDuration();
    retry_at_ = absl::InfinitePast();
  } else if (absl::IsFailedPrecondition(status)) {
    ++stats_.no_room_total;
  } else {
    ++stats_.failed_total;
    if (absl::IsInvalidArgument(status)) return;  // the request is wrong, not the disk
    backoff_ = backoff_ == absl::ZeroDuration() ? options_.first_backoff
                                                : std::min(2 * backoff_, options_.max_backoff);
    retry_at_ = options_.now() + backoff_;
  }
}

bool Persister::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &Persister::Idle), timeout);
}

Persister::Stats Persister::stats() {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.degraded = options_.now() < retry_at_;
  return stats;
}

}  // namespace retroinfer::kvstore
