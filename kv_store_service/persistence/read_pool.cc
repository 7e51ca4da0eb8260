// Invariants: a batch lives as long as its call of Run(), which takes the batch off the list before
// it waits for the helpers: nobody begins with a batch whose call may end.
#include "kv_store_service/persistence/read_pool.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/process/start_thread.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kAlignment = 4096;

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<std::byte, Freed>;

// A thread's buffer lives as long as the thread: memory that is new costs a page fault each 4 KiB.
std::span<std::byte> BufferOfThread(size_t bytes) {
  static thread_local AlignedBuffer buffer;
  static thread_local size_t buffer_bytes = 0;
  if (buffer_bytes < bytes) {
    buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
    buffer_bytes = buffer == nullptr ? 0 : bytes;
  }
  return {buffer.get(), std::min(bytes, buffer_bytes)};
}

}  // namespace

ReadPool::~ReadPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads.swap(threads_);
    has_work_.SignalAll();
  }
  for (std::thread& thread : threads) thread.join();
}

void ReadPool::StartThreads(uint32_t wanted) {
  while (threads_.size() < std::min(wanted, num_threads_)) {
    absl::StatusOr<std::thread> thread = common::StartThread([this] { Help(); });
    if (!thread.ok()) return;
    threads_.push_back(*std::move(thread));
  }
}

absl::Status ReadPool::Run(uint32_t count, const Work& work) {
  if (count == 0) return absl::OkStatus();
  Batch batch;
  batch.count = count;
  batch.work = &work;
  if (count > 1) {
    absl::MutexLock lock(&mutex_);
    StartThreads(count - 1);
    batches_.push_back(&batch);
    const auto helpers = std::min<size_t>(count - 1, threads_.size());
    for (size_t i = 0; i < helpers; ++i) has_work_.Signal();
  }
  WorkOn(batch);
  absl::MutexLock lock(&mutex_);
  Remove(batch);
  while (batch.num_helpers > 0) helper_ended_.Wait(&mutex_);
  return batch.error;
}

void ReadPool::Help() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    while (batches_.empty() && !stopping_) has_work_.Wait(&mutex_);
    if (stopping_) return;
    Batch& batch = *batches_.front();
    ++batch.num_helpers;
    mutex_.Unlock();
    WorkOn(batch);
    mutex_.Lock();
    Remove(batch);
    if (--batch.num_helpers == 0) helper_ended_.SignalAll();
  }
}

void ReadPool::WorkOn(Batch& batch) {
  const std::span<std::byte> buffer = BufferOfThread(buffer_bytes_);
  if (buffer.size() < buffer_bytes_) {
    return Note(batch, absl::ResourceExhaustedError(absl::StrCat(
                           "no memory for a buffer of ", buffer_bytes_, " bytes to read by")));
  }
  while (!batch.has_failed.load(std::memory_order_relaxed)) {
    const uint32_t index = batch.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= batch.count) return;
    absl::Status status = (*batch.work)(index, buffer);
    if (!status.ok()) Note(batch, std::move(status));
  }
}

void ReadPool::Note(Batch& batch, absl::Status status) {
  batch.has_failed.store(true, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  if (batch.error.ok() || absl::IsDataLoss(status)) batch.error = std::move(status);
}

void ReadPool::Remove(const Batch& batch) {
  const auto found = std::ranges::find(batches_, &batch);
  if (found != batches_.end()) batches_.erase(found);
}

}  // namespace retroinfer::kvstore
