#include "gpu_worker/server/context_saver.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/kv/segment_layout.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/wave_index/named_prefix.h"

namespace retroinfer {
namespace {

namespace store = kvstore::v1;

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kCallTimeout = absl::Seconds(30);
// A computed segment may be evicted before it is written when the arena is small and busy.
constexpr int kMaxComputations = 3;

class ProgressSink final : public GenerationSink {
 public:
  void OnProgress(const PrefillProgress& progress) override {
    absl::MutexLock lock(&mutex_);
    progress_ = progress;
  }
  // Returns the newest progress since the last call.
  std::optional<PrefillProgress> TakeProgress() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(progress_, std::nullopt);
  }
  void OnOutput(const OutputDelta& /*delta*/) override {}
  void OnFinish(const GenerationResult& result) override {
    result_ = result;
    finished_.Notify();
  }
  bool Wait(absl::Duration timeout) { return finished_.WaitForNotificationWithTimeout(timeout); }
  const GenerationResult& result() const { return result_; }  // once Wait() returned true

 private:
  absl::Mutex mutex_;
  std::optional<PrefillProgress> progress_ ABSL_GUARDED_BY(mutex_);
  absl::Notification finished_;
  GenerationResult result_;
};

absl::Status TooShort(const ServedModel& model, size_t tokens) {
  return common::WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "the text has ", tokens, " tokens and nothing of it would be kept: texts under ",
          model.dense_below, " tokens (--dense-below) are computed each time")),
      "CONTEXT_TOO_SHORT", {{"tokens", absl::StrCat(tokens)}});
}

store::SaveContextRequest MakeRequest(const PrefixToSave& prefix, const NamedPrefix& named,
                                      const ServedModel& model) {
  store::SaveContextRequest request;
  request.set_name(prefix.name);
  request.set_salt_hash(std::string(named.salt_hash.view()));
  request.set_root(std::string(
      common::RootName(model.segment_fingerprint, named.salt_hash, kSegmentVersion).view()));
  const std::vector<int32_t>& prompt = prefix.request.prompt;
  request.mutable_sink_token_ids()->Add(prompt.begin(), prompt.begin() + kSinkTokens);
  for (const common::SegmentName& name : named.names) {
    request.add_segments(std::string(name.view()));
  }
  request.set_num_tokens(prompt.size());
  request.set_pinned(prefix.pinned);
  request.set_replace(prefix.replace);
  if (prefix.time_to_live != absl::InfiniteDuration()) {
    absl::Duration rest;
    request.mutable_time_to_live()->set_seconds(
        absl::IDivDuration(prefix.time_to_live, absl::Seconds(1), &rest));
    request.mutable_time_to_live()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  }
  return request;
}

}  // namespace

absl::StatusOr<SavedPrefix> ContextSaver::Save(
    PrefixToSave prefix, const std::function<void(const PrefillProgress&)>& on_progress,
    const std::function<bool()>& is_cancelled) {
  if (model_.synthetic_context > 0) {
    return absl::FailedPreconditionError(
        "this server puts random keys before every prompt (--synthetic-context): there is nothing "
        "worth saving");
  }
  const NamedPrefix named = NamePrefix(prefix.request.prompt, model_.dense_below,
                                       model_.segment_fingerprint, prefix.request.cache_salt);
  if (named.names.empty()) return TooShort(model_, prefix.request.prompt.size());
  const store::SaveContextRequest request = MakeRequest(prefix, named, model_);
  SavedPrefix saved;
  int computations = 0;
  while (true) {
    if (is_cancelled()) return absl::CancelledError("the client is gone");
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
    store::SaveContextResponse response;
    RETURN_IF_ERROR(common::FromGrpcStatus(store_.SaveContext(&context, request, &response)));
    if (response.has_saved()) {
      saved.context = response.saved();
      return saved;
    }
    if (response.missing_segments() > 0 && response.queued_segments() == 0) {
      if (++computations > kMaxComputations) {
        return RequestFailure(absl::ResourceExhaustedError(
            absl::StrCat("segments were evicted ", kMaxComputations,
                         " times before they were written: the arena is too small for what runs "
                         "beside this; try again later or use a larger --arena-bytes")));
      }
      ASSIGN_OR_RETURN(const int64_t computed, Compute(prefix.request, on_progress, is_cancelled));
      saved.computed_tokens += computed;
      continue;
    }
    absl::SleepFor(kPoll);
  }
}

absl::StatusOr<int64_t> ContextSaver::Compute(
    const GenerationRequest& request,
    const std::function<void(const PrefillProgress&)>& on_progress,
    const std::function<bool()>& is_cancelled) {
  const auto sink = std::make_shared<ProgressSink>();
  RETURN_IF_ERROR(engine_.Submit(request, sink));
  while (!sink->Wait(kPoll)) {
    if (is_cancelled()) engine_.Abort(request.request_id);
    if (const auto progress = sink->TakeProgress()) on_progress(*progress);
  }
  const GenerationResult& result = sink->result();
  RETURN_IF_ERROR(result.status);
  if (result.reason == FinishReason::kCancelled || result.reason == FinishReason::kDeadline) {
    return absl::CancelledError("the computation was cancelled");
  }
  return result.prompt_tokens - result.cached_tokens;
}

}  // namespace retroinfer
