// What other threads tell the engine's thread: new requests, aborts, answers of the store.
//
// Threads: any thread posts, the engine's thread takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv/extent.h"
#include "gpu_worker/engine/generation.h"
#include "gpu_worker/wave_index/named_prefix.h"

namespace retroinfer {

struct Submission {
  GenerationRequest request;
  std::shared_ptr<GenerationSink> sink;
  absl::Time submitted;
  NamedPrefix prefix = {};
};

struct ReserveAnswer {
  uint64_t sequence_id;
  absl::StatusOr<std::vector<Extent>> extents;
};

struct Mail {
  std::vector<Submission> submissions;
  std::vector<std::string> aborts;
  std::vector<ReserveAnswer> answers;
};

class Inbox {
 public:
  explicit Inbox(size_t max_live) : max_live_(max_live) {}

  // Returns REQUEST_ID_IN_USE, QUEUE_FULL or DRAINING (see request_errors.h).
  absl::Status Submit(Submission submission);
  // Returns false if no live request has that id.
  bool Abort(std::string_view request_id);
  void Answer(ReserveAnswer answer);
  // Refuses submissions from now on.
  void Close();
  // Wakes a waiting Take.
  void Wake();

  // Takes everything there is; waits up to `timeout` for something if there is nothing.
  Mail Take(absl::Duration timeout);
  // The request has finished: its id may be used again. Aborts of it that were not taken are gone.
  void Forget(std::string_view request_id);
  bool AnyLive() const;

  // Submissions that the engine's thread has not taken yet.
  struct Untaken {
    int64_t count = 0;
    absl::Time oldest = absl::InfiniteFuture();
  };
  Untaken untaken() const;
  size_t max_live() const { return max_live_; }

 private:
  const size_t max_live_;

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  Mail mail_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> live_ ABSL_GUARDED_BY(mutex_);  // ids of requests not finished
};

}  // namespace retroinfer
