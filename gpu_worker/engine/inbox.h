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
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv/extent.h"
#include "common/tenant/tenant.h"
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
  struct Limits {
    size_t max_live = 1024;  // requests
    // Tokens of prompts that are not read yet. One prompt may always wait, however long it is.
    int64_t max_waiting_tokens = common::Tenant::kNoLimit;
    absl::Duration max_expected_wait = absl::InfiniteDuration();
  };
  explicit Inbox(const Limits& limits) : limits_(limits) {}

  // Returns REQUEST_ID_IN_USE, DRAINING or what says that there are too many (see
  // request_errors.h).
  absl::Status Submit(Submission submission);
  // The prompt of a live request is read: it waits no more.
  void PromptRead(std::string_view request_id);
  // How long a request that came now would wait for its turn.
  void SetExpectedWait(absl::Duration wait);
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

  // Submissions that statistics do not have yet: not taken, or taken since the last Publish.
  struct Uncounted {
    int64_t count = 0;
    absl::Time oldest = absl::InfiniteFuture();
  };
  // Calls `publish`, which is to put into the statistics all that was taken. To ReadUncounted the
  // two are one: a submission is never in both or in neither.
  void Publish(absl::FunctionRef<void()> publish);
  // Calls `read` with what the statistics that it reads do not have.
  void ReadUncounted(absl::FunctionRef<void(const Uncounted&)> read) const;
  size_t max_live() const { return limits_.max_live; }

 private:
  // Requests and tokens of a tenant, or of all tenants.
  struct Usage {
    int64_t requests = 0;
    int64_t waiting_tokens = 0;
  };
  struct LiveEntry {
    std::string tenant;
    int64_t waiting_tokens = 0;
  };

  absl::Status CheckLimits(const GenerationRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Uncounted UncountedNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  Mail mail_ ABSL_GUARDED_BY(mutex_);
  Uncounted taken_ ABSL_GUARDED_BY(mutex_);  // since the last Publish
  absl::Duration expected_wait_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  // Requests that are not finished, by id, and their tenants by name.
  absl::flat_hash_map<std::string, LiveEntry> live_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Usage> tenants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer
