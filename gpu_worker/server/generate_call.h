// One Generate call between the engine and its stream, free of gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/server/pending_budget.h"
#include "gpu_worker/server/request_observer.h"
#include "gpu_worker/server/response_queue.h"
#include "gpu_worker/server/task_pool.h"

namespace retroinfer {

// Where a call's events go. After Write() the call waits for OnWriteDone() before anything else;
// Finish() is the last call, and the stream may be destroyed inside it.
class EventStream {
 public:
  virtual ~EventStream() = default;
  // REQUIRES of the caller: `event` stays unchanged until OnWriteDone().
  virtual void Write(const generation::v1::GenerateResponse* event) = 0;
  virtual void Finish(const absl::Status& status) = 0;
};

// Submits the continuations of one call, merges what the engine makes of them into a bounded queue,
// and writes the queue to the stream as fast as the client reads.
//
// The engine's output thread only takes a mutex for a moment, appends, and posts a task; writing
// happens on the sender's thread. A client that lets more than max_pending_bytes pile up, or more
// than its share when all together are beyond their budget, loses the request with
// RESOURCE_EXHAUSTED. A request that the end of the server cancels before its first token ends with
// UNAVAILABLE. The stream is finished when the engine has ended every continuation, so an ended
// call holds nothing in the engine.
//
// Threads: all methods on any thread. Shared by the stream, the engine's sinks and posted tasks.
class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  struct Context {  // all outlive the call
    Engine* engine;
    TaskPool* sender;  // one thread
    RequestObserver* observer;
    size_t max_pending_bytes;
    std::shared_ptr<PendingBudget> pending;       // of all calls; null: no limit
    const std::atomic<bool>* draining = nullptr;  // whether the server is about to end
  };

  // What the client asked for, checked.
  struct Submission {
    std::string request_id;
    std::vector<GenerationRequest> continuations;  // their request_id is EngineRequestId()
    bool want_progress = false;
    bool want_logprobs = false;
    const Tokenizer* tokenizer =
        nullptr;                       // for the bytes of tokens with logprobs; outlives the call
    std::string tenant;                // of the key; empty where keys are not of tenants
    bool deadline_is_of_call = false;  // kDeadline means that the call's own deadline has passed
    int64_t earlier_tokens = 0;        // of the prompt; see ConversationPrompt
    // Of a call of Score: for each request, which of the client's continuations its own are. The
    // events have these as their index, and one finished event speaks for all.
    std::vector<std::vector<int>> scored = {};
  };
  // The first continuation has the request's own name, so that this is taken while the request is
  // live.
  static std::string EngineRequestId(const std::string& request_id, int index);

  // `stream` lives until its Finish(). `deadline` is the call's own.
  GenerateCall(const Context& context, EventStream* stream,
               absl::Time deadline = absl::InfiniteFuture());

  // Hands the continuations to the engine; all or none of them run. Exactly one of Submit() and
  // Refuse() must be called, once.
  void Submit(Submission submission) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the call before it began.
  void Refuse(const std::string& request_id, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // From the stream. `ok` false: the client is gone. Both also come when the call's deadline has
  // passed, and then the request counts as ended by that.
  void OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancelled() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether nobody waits for the answer any more.
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Sink;

  void AddProgress(int index, const PrefillProgress& progress) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddOutput(int index, const OutputDelta& delta, int64_t cached_tokens,
                 int64_t completion_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddPrompt(const OutputDelta& delta) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddFinished(int index, const GenerationResult& result) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddToTotal(const GenerationResult& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Ends what nobody listens to any more.
  void OnClientGone(const char* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EndedByDeadline() ABSL_LOCKS_EXCLUDED(mutex_);
  void LimitQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostAdvance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does what is to be done next: abort, write or finish.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  const Context context_;
  EventStream* const stream_;
  const absl::Time arrival_;
  const absl::Time deadline_;
  // The event being written; owned by the stream while write_in_flight_.
  generation::v1::GenerateResponse outgoing_;

  mutable absl::Mutex mutex_;  // never held while the engine or the stream is called
  std::unique_ptr<ResponseQueue> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> engine_ids_ ABSL_GUARDED_BY(mutex_);
  PendingBudget::Share share_ ABSL_GUARDED_BY(mutex_);
  size_t outgoing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the event being written
  absl::Status status_ ABSL_GUARDED_BY(mutex_);        // that the stream will finish with
  bool deadline_is_of_call_ ABSL_GUARDED_BY(mutex_) = false;
  // Of a call of Score: what those that have ended make together, and how many have not.
  GenerationResult total_ ABSL_GUARDED_BY(mutex_);
  size_t unscored_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;            // continuations that the engine has not ended
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;  // no more continuations will be opened
  bool discard_ ABSL_GUARDED_BY(mutex_) = false;    // nobody will read any more events
  bool abort_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool advance_posted_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_called_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace retroinfer
