// The store link's state: its queue, its control thread, and what they know of the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/log/check.h"
#include "common/log/log_rate_limiter.h"
#include "common/shm/data_plane.h"
#include "common/shm/unique_fd.h"
#include "gpu_worker/store_link/extent_ledger.h"
#include "gpu_worker/store_link/link_operation.h"
#include "gpu_worker/store_link/part_fetcher.h"
#include "gpu_worker/store_link/store_client.h"
#include "gpu_worker/store_link/store_link.h"

namespace retroinfer {

// Threads: as StoreLink; the private methods on the control thread, but Connect().
class StoreLink::Impl {
 public:
  explicit Impl(StoreLinkOptions options) : options_(std::move(options)) {}
  ~Impl();

  absl::Status Connect();

  void Enqueue(LinkOperation operation) ABSL_LOCKS_EXCLUDED(mutex_);
  void FetchParts(const std::vector<PartsOfExtent>& wanted, PartsCallback callback)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    std::string token;
    {
      absl::MutexLock lock(&mutex_);
      token = token_;
    }
    if (attached_) return fetcher_.Fetch(token, wanted, kPartsTimeout, std::move(callback));
    callback(absl::UnavailableError("there is no kv_store_service"));
  }
  void SetReattachCallback(std::function<void()> callback) ABSL_LOCKS_EXCLUDED(callback_mutex_);
  size_t num_pending() const ABSL_LOCKS_EXCLUDED(mutex_);

  const StoreLinkOptions& options() const { return options_; }
  bool attached() const { return attached_; }
  uint64_t num_reattached() const { return num_reattached_; }
  std::span<std::byte> arena() const { return memory_.arena.bytes(); }
  DataPlane& data_plane(size_t rank) {
    RI_CHECK(rank < planes_.size());
    return planes_[rank];
  }
  int arena_fd() const { return memory_.arena.fd(); }
  int plane_fd(size_t rank) const {
    RI_CHECK(rank < memory_.data_planes.size());
    return memory_.data_planes[rank].fd();
  }
  // The store has told all planes before another worker can write.
  bool memory_taken() const {
    return planes_.front().arena_taken().load(std::memory_order_seq_cst) != 0;
  }

 private:
  static constexpr absl::Duration kPartsTimeout = absl::Minutes(1);

  void NoteAttached() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    token_ = client_->token();
    attached_ = true;
  }
  void Loop();
  void WaitForWork();
  void WaitFor(absl::Duration duration);
  void Reattach();
  // Ends everything, once the arena is another worker's.
  void GiveUpMemory();
  void Lose(const std::string& reason);
  enum class Outcome { kAnswered, kNoAnswer, kStoreGone };
  // Takes the oldest operation, if there is one, to the store; keeps it unless it was answered.
  Outcome ProcessFront();
  Outcome ProcessReserve(LinkOperation& operation);
  // Keeps a reservation that the store answered with `reason`.
  void SetAside(LinkOperation operation, const common::ErrorReason& reason);
  // Moves reservations that wait for other sequences back into the queue: those that are due, or
  // all.
  void ResumeWaiting(bool all);
  // Ends the sequence's reservation if it waits for another sequence.
  void CancelWaiting(uint64_t sequence_id);
  Outcome ProcessCommit(LinkOperation& operation);
  Outcome ProcessRelease(LinkOperation& operation);
  // Ends an operation's call, which the reservations in the queue have waited for.
  void EndCall(LinkOperation operation, Outcome outcome, absl::Duration took)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails the reservations in the queue that have waited long enough.
  void ExpireReservations();
  // Runs while a call waits; false ends the call.
  bool Tick();
  // Fails all operations.
  void EndAll(const absl::Status& error);

  // Constant after Connect(), but the mark in memory_, which is the control thread's.
  const StoreLinkOptions options_;
  common::UniqueFd wake_;
  SharedMemory memory_;
  std::vector<DataPlane> planes_;  // by rank

  // Control thread only.
  std::unique_ptr<StoreClient> client_;
  ExtentLedger ledger_;
  absl::Duration backoff_;
  bool gave_up_ = false;
  absl::Time next_look_ = absl::InfiniteFuture();  // for waiting_
  common::LogRateLimiter reattach_log_{absl::Seconds(10)};

  absl::Mutex callback_mutex_;  // held while on_reattach_ runs; taken before mutex_
  std::function<void()> on_reattach_ ABSL_GUARDED_BY(callback_mutex_);

  mutable absl::Mutex mutex_;
  std::deque<LinkOperation> queue_ ABSL_GUARDED_BY(mutex_);
  size_t num_in_call_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration time_of_call_ ABSL_GUARDED_BY(mutex_);  // that the commit in the call may take
  std::string token_ ABSL_GUARDED_BY(mutex_);            // of the last attachment
  std::deque<LinkOperation> waiting_ ABSL_GUARDED_BY(mutex_);  // for other sequences; reservations

  // Own synchronisation.
  std::atomic<bool> attached_{false};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> num_reattached_{0};
  PartFetcher fetcher_{options_.target};
  std::thread thread_;
};

}  // namespace retroinfer
