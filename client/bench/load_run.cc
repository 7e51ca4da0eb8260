#include "client/bench/load_run.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/generate/generation.h"
#include "common/clock/steady_now.h"
#include "common/rpc/context_affinity.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kStopPollInterval = absl::Milliseconds(20);

// The calls in flight, to be cancelled together.
class CallsInFlight {
 public:
  // False once cancelled: then the call must not start.
  bool Add(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return false;
    contexts_.insert(context);
    return true;
  }
  void Remove(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    contexts_.erase(context);
  }
  void CancelAll() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }
  // Waits for `time` or until cancelled; whether it was not.
  bool WaitFor(absl::Duration time) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), time);
    return !cancelled_;
  }
  bool cancelled() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  absl::Mutex mutex_;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

void RunOne(const Connection& connection, const generation::v1::GenerateRequest& request,
            CallsInFlight& calls, RequestRecord& record) {
  grpc::ClientContext context;
  connection.Prepare(&context, common::ContextAffinity(request));
  if (!calls.Add(&context)) return;
  record.sent = true;
  const absl::Time sent = common::SteadyNow();
  absl::Time last = absl::InfinitePast();
  GenerationCallbacks callbacks;
  callbacks.on_text = [&](int, const std::string&) {
    const absl::Time now = common::SteadyNow();
    if (last == absl::InfinitePast()) {
      record.first_token = now - sent;
    } else {
      record.gaps.push_back(now - last);
    }
    last = now;
    return true;
  };
  const GenerationOutcome outcome = RunGeneration(connection, &context, request, callbacks);
  calls.Remove(&context);
  record.end = common::SteadyNow() - sent;
  if (!outcome.status.ok()) {
    record.error = connection.Explain(outcome.status);
    return;
  }
  const generation::v1::Finished& finished = outcome.continuations[0].finished;
  record.prompt_tokens = finished.prompt_tokens();
  record.cached_tokens = finished.cached_tokens();
  record.completion_tokens = finished.completion_tokens();
}

}  // namespace

LoadRun RunLoad(const Connection& connection, const std::vector<PlannedRequest>& plan,
                const LoadRunOptions& options) {
  LoadRun run;
  if (plan.empty()) return run;
  run.records.resize(plan.size());
  for (size_t i = 0; i < plan.size(); ++i) run.records[i].request_class = plan[i].request_class;
  CallsInFlight calls;
  const absl::Time start = common::SteadyNow();
  absl::Mutex mutex;
  size_t next = 0;   // guarded by mutex
  int64_t done = 0;  // guarded by mutex
  // Each thread takes the next request of the plan, waits for its time, and runs it.
  const auto work = [&] {
    while (true) {
      size_t index;
      {
        absl::MutexLock lock(&mutex);
        if (next == plan.size()) return;
        index = next++;
      }
      if (!calls.WaitFor(start + plan[index].arrival - common::SteadyNow())) return;
      generation::v1::GenerateRequest request = options.request;
      auto* const ids = request.mutable_token_ids()->mutable_ids();
      ids->Assign(plan[index].token_ids.begin(), plan[index].token_ids.end());
      if (plan[index].output_len > 0) {
        request.mutable_sampling()->set_max_tokens(plan[index].output_len);
      }
      if (plan[index].priority != 0) request.set_priority(plan[index].priority);
      if (!plan[index].tenant.empty()) request.set_tenant(plan[index].tenant);
      RunOne(connection, request, calls, run.records[index]);
      absl::MutexLock lock(&mutex);
      ++done;
      if (options.on_progress) options.on_progress(done);
    }
  };
  std::vector<std::thread> threads;
  const size_t num_threads =
      std::min(plan.size(), static_cast<size_t>(std::max(options.max_concurrency, 1)));
  std::atomic<size_t> working{num_threads};
  absl::Notification finished;
  for (size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      work();
      if (--working == 0) finished.Notify();
    });
  }
  while (!finished.WaitForNotificationWithTimeout(kStopPollInterval)) {
    if (options.should_stop && !calls.cancelled() && options.should_stop()) calls.CancelAll();
  }
  for (std::thread& thread : threads) thread.join();
  run.duration = common::SteadyNow() - start;
  run.interrupted = calls.cancelled();
  return run;
}

}  // namespace retroinfer::client
