#include "gpu_worker/device/cpu/cpu_stream.h"

#include "gpu_worker/device/cpu/cpu_event.h"
#include "gpu_worker/device/cpu/thread_priority.h"

namespace retroinfer {
namespace {

constexpr int kBackgroundNice = 10;

}  // namespace

CpuStream::CpuStream(StreamKind kind, ThreadPool* pool, ThreadPool* urgent_pool) : pool_(pool) {
  if (kind != StreamKind::kBackground) return;
  thread_ = std::thread([this] {
    LowerThreadPriority(kBackgroundNice);
    RunQueue(/*urgent=*/false, *pool_);
  });
  urgent_thread_ = std::thread([this, urgent_pool] {
    RunQueue(/*urgent=*/true, urgent_pool != nullptr ? *urgent_pool : *pool_);
  });
}

CpuStream::~CpuStream() {
  if (!is_background()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  urgent_thread_.join();
}

absl::Status CpuStream::Record(Event& event) {
  const std::shared_ptr<EventState>& state = static_cast<CpuEvent&>(event).state();
  const uint64_t record = state->MarkRecorded();
  return Launch([state, record](ThreadPool&) { state->MarkReached(record); });
}

absl::Status CpuStream::Wait(const Event& event) {
  const std::shared_ptr<EventState>& state = static_cast<const CpuEvent&>(event).state();
  return Launch([state, record = state->recorded()](ThreadPool&) { state->WaitFor(record); });
}

absl::Status CpuStream::Synchronize() {
  if (!is_background()) return absl::OkStatus();
  const auto is_idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return queue_.empty() && !running_;
  };
  absl::MutexLock lock(&mutex_);
  ++num_synchronizing_;
  mutex_.Await(absl::Condition(&is_idle));
  --num_synchronizing_;
  return absl::OkStatus();
}

void CpuStream::SetUrgent(bool urgent) {
  absl::MutexLock lock(&mutex_);
  urgent_ = urgent;
}

void CpuStream::Enqueue(Work work) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
}

void CpuStream::RunQueue(bool urgent, ThreadPool& pool) {
  const auto has_news = [this, urgent]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (queue_.empty()) return stopping_;
    return !running_ && (urgent_ || num_synchronizing_ > 0) == urgent;
  };
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_news));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    work(pool);
    work = nullptr;  // what it holds goes before the stream says that it is idle
    absl::MutexLock lock(&mutex_);
    running_ = false;
  }
}

}  // namespace retroinfer
