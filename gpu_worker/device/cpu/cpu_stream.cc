#include "gpu_worker/device/cpu/cpu_stream.h"

#include "gpu_worker/device/cpu/cpu_event.h"
#include "gpu_worker/device/cpu/thread_priority.h"

namespace retroinfer {
namespace {

constexpr int kBackgroundNice = 10;

const EventState& StateOf(const Event& event) {
  return *static_cast<const CpuEvent&>(event).state();
}

}  // namespace

CpuStream::CpuStream(StreamKind kind, ThreadPool* pool) : pool_(pool) {
  if (kind == StreamKind::kBackground) {
    thread_ = std::thread([this] {
      LowerThreadPriority(kBackgroundNice);
      RunQueue();
    });
  }
}

CpuStream::~CpuStream() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status CpuStream::Record(Event& event) {
  const std::shared_ptr<EventState>& state = static_cast<CpuEvent&>(event).state();
  const uint64_t record = state->MarkRecorded();
  if (!thread_.joinable()) {
    state->MarkReached(record);
  } else {
    Enqueue([state, record] { state->MarkReached(record); });
  }
  return absl::OkStatus();
}

absl::Status CpuStream::Wait(const Event& event) {
  const uint64_t record = StateOf(event).recorded();
  if (!thread_.joinable()) {
    StateOf(event).WaitFor(record);
  } else {
    Enqueue(
        [state = static_cast<const CpuEvent&>(event).state(), record] { state->WaitFor(record); });
  }
  return absl::OkStatus();
}

absl::Status CpuStream::Synchronize() {
  if (!thread_.joinable()) return absl::OkStatus();
  auto is_idle = [this]()
                     ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return queue_.empty() && !running_; };
  mutex_.LockWhen(absl::Condition(&is_idle));
  mutex_.Unlock();
  return absl::OkStatus();
}

void CpuStream::Enqueue(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
}

void CpuStream::RunQueue() {
  auto has_news = [this]()
                      ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !queue_.empty() || stopping_; };
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      running_ = false;
      mutex_.Await(absl::Condition(&has_news));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    work();
  }
}

}  // namespace retroinfer
