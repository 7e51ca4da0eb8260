// The engine of one worker: one model on one device.
//
// One thread runs the loop: take mail, look at what the device, the background and the store have
// done, ask the scheduler for a plan, carry it out (scheduler/step_plan.h).
//
// Owns:    KV memory, policies, lanes. Model, device, tokenizer and store belong to the caller and
//          outlive the engine.
// Threads: as Engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/log/log_rate_limiter.h"
#include "gpu_worker/attention/policy_table.h"
#include "gpu_worker/attention/prompt_only_policy.h"
#include "gpu_worker/engine/block_saver.h"
#include "gpu_worker/engine/decode_step.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/engine_stats_board.h"
#include "gpu_worker/engine/inbox.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/engine/prefill_lane.h"
#include "gpu_worker/engine/prefix_directory.h"
#include "gpu_worker/engine/scheduler/scheduler.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/engine/tenant_directory.h"
#include "gpu_worker/engine/work_clock.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/sequence_segments.h"
#include "gpu_worker/kv/suspended_kv.h"
#include "gpu_worker/wave_buffer/block_cache.h"

namespace retroinfer {

struct LocalEngineOptions {
  MemoryPlan plan;
  std::vector<int32_t> eos_token_ids;
  std::string segment_fingerprint;  // of all that decides the bytes of a segment but its tokens
  size_t max_live_requests = 1024;  // queued and running
  int64_t max_waiting_tokens = common::Tenant::kNoLimit;        // Inbox::Limits
  absl::Duration max_expected_wait = absl::InfiniteDuration();  // Inbox::Limits
  bool share_segments = true;  // name the segments of prompts, so that others find them
  absl::Duration inter_token_target = absl::Milliseconds(50);  // SchedulerOptions
  AheadShares ahead;                                           // SchedulerOptions
  bool reserves_all = false;  // device memory for all of max_tokens when a request begins
  // Called by the loop, on its thread, once a round, however idle it is; may be empty.
  std::function<void()> on_progress;
  // Called by the loop, on its thread, with what the scheduler was told and the plan that it made,
  // each round, also where that is empty, and before it is carried out; may be empty. May let
  // further requests step aside, or put another plan in its place that can be carried out now.
  std::function<void(const SchedulerInput&, StepPlan&)> on_plan;
};

// What the engine runs on. Plain pointers are not owned.
struct EngineParts {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Stream* stream = nullptr;  // compute
  Transformer* model = nullptr;
  const Tokenizer* tokenizer = nullptr;
  SegmentStore* store = nullptr;
  std::span<std::byte> arena;  // the store's, as the host sees it
  std::unique_ptr<KvMemory> memory;
  std::unique_ptr<SuspendedKv> suspended;  // null: nobody steps aside
  std::unique_ptr<BlockCache> cache;
  std::unique_ptr<SequenceSegments> segments;
  std::shared_ptr<void> decoration;  // what decorated policies need
  PolicySet policies;
};

class LocalEngine final : public Engine {
 public:
  // Allocates lanes and step memory and starts the loop.
  static absl::StatusOr<std::unique_ptr<LocalEngine>> Start(const LocalEngineOptions& options,
                                                            EngineParts parts);
  // Cancels what is live and waits for it.
  ~LocalEngine() override;

  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  bool CanMeasureTogether(const AttentionSettings& attention, int64_t prompt_tokens,
                          int64_t continuation_tokens) const override;
  bool Abort(std::string_view request_id) override;
  void Drain(absl::Time deadline) override;
  const EngineLimits& limits() const override { return limits_; }
  EngineStats stats() const override;

  // The options of the scheduler that makes the plans.
  const SchedulerOptions& scheduler_options() const { return scheduler_->options(); }
  // Forgets what work has cost so far: it was done for the first time.
  void ForgetCosts() { forget_costs_ = true; }
  // Waits until nothing is live, then counts from zero: what came before was no client's.
  void StartCounting();

 private:
  LocalEngine(const LocalEngineOptions& options, EngineParts parts);

  absl::Status CreateWorkspaces();
  void Loop();
  bool RunOnce();  // returns whether anything was done

  // Mail.
  void TakeMail(absl::Duration timeout);
  void TakeSubmission(Submission submission);
  void TakeAnswer(ReserveAnswer answer);

  // Admission.
  absl::Status CheckFits(const GenerationRequest& request) const;
  AttentionPolicy& PolicyOf(const GenerationRequest& request) const;
  void Reserve(LiveRequest& live, bool asks_store);
  bool AskForRows(LiveRequest& live);
  void Grant(LiveRequest& live);
  void PutBack(LiveRequest& live);
  void Grow(uint64_t id);
  void LogCopy(const LiveRequest& live, const char* way, absl::Time begun) const;
  void Advance(LiveRequest& live);

  // What the scheduler is told.
  void Observe();
  void ObserveRequests();
  bool IsUnused(LiveRequest& live);
  void TellExpectedWait();
  RequestDescription DescribePrompt(const LiveRequest& live) const;
  RequestDescription Describe(LiveRequest& live);
  void DescribeMemory(LiveRequest& live, RequestDescription& description);
  absl::Status DescribeProgress(LiveRequest& live, RequestDescription& description);
  absl::Status DescribeDecoding(LiveRequest& live, RequestDescription& description);
  bool ArenaMayGetRoom(const LiveRequest& live) const;
  void CompareReady();
  void LogCache(const absl::Status& status);
  void LogLook(const char* at, const absl::Status& status);
  void DescribeLane(const PrefillLane& lane, LaneDescription& description);

  // What it plans.
  void CarryOut(const StepPlan& plan);
  void CarryOutEnding(const StepPlan::Ending& ending);
  void LetGo(std::span<const uint64_t> ids);
  void BeginGroup(const StepPlan::Group& group);
  void DescribeRuns(const PrefillLane& lane, LaneDescription& description);
  void RunPass(const StepPlan::Pass& pass);
  void FinishGroup(PrefillLane& lane);
  void FinishPrompt(LiveRequest& live);
  void EndGroup(PrefillLane& lane, const absl::Status& status);
  void RunDecodeStep(const StepPlan& plan);
  void EndBatch(const absl::Status& status);

  // What later requests find.
  void SaveBlocks(LiveRequest& live, int64_t end);
  void SaveAtEnd(LiveRequest& live);
  void TendSaves();
  void ReleaseRows(LiveRequest& live);

  // Stepping aside.
  void Suspend(uint64_t id);
  void Resume(uint64_t id);
  void Leave(LiveRequest& live);
  void Rejoin(LiveRequest& live);

  // Measuring.
  absl::StatusOr<std::vector<OutputToken>> SampleFirsts(std::span<LiveRequest* const> members);
  void EmitFirst(LiveRequest& live);
  void EmitMeasured(LiveRequest& live, const OutputToken& token);
  void Deliver(LiveRequest& live, OutputDelta delta);
  void MeasurePrompt(const StepPlan::Measure& measure);
  absl::Status MeasureRows(const PrefillLane& lane, LiveRequest& live, int64_t rows);

  void TendBackground(bool worked);

  // Output.
  void Emit(LiveRequest& live, const OutputToken& token);
  void EndBecauseMemoryWasTaken(LiveRequest& live);
  void ReportProgress(const PrefillLane& lane);
  void End(LiveRequest& live, FinishReason reason, absl::Status status = absl::OkStatus());
  void UpdateStats();
  LiveRequest* Find(uint64_t sequence_id);

  const LocalEngineOptions options_;
  EngineParts parts_;
  EngineLimits limits_;
  // Shared with the store's answers, which may come after the engine's end.
  const std::shared_ptr<Inbox> inbox_;
  EngineStatsBoard stats_;
  mutable PromptOnlyPolicy prompt_only_;  // has no state

  // Of the engine's thread.
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> decode_step_;
  std::vector<std::unique_ptr<PrefillLane>> lanes_;  // the long one, then the short one
  std::unique_ptr<BlockSaver> saver_;                // null: requests share nothing
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<WorkClock> clock_;
  SchedulerInput input_;
  TenantDirectory tenants_;
  PrefixDirectory prefixes_;
  absl::Time next_expected_wait_ = absl::InfinitePast();
  LiveRequests live_;
  std::vector<LiveRequest*> batch_;
  // Of requests. A scheduler elsewhere that is told the same requests gives them the same ids, so
  // that what depends on time, claims on rows and saves of blocks, has ids of its own.
  uint64_t next_sequence_id_ = 1;
  uint64_t next_claim_id_ = uint64_t{1} << 62;
  uint64_t num_releases_ = 0;  // calls of the store's Release
  bool background_is_urgent_ = false;

  // What fails in one round often fails in all of them, thousands a second.
  common::LogRateLimiter cache_log_{absl::Seconds(1)};
  common::LogRateLimiter device_log_{absl::Seconds(1)};

  std::atomic<bool> stopping_ = false;
  std::atomic<bool> cancel_all_ = false;
  std::atomic<bool> start_counting_ = false;
  std::atomic<bool> forget_costs_ = false;
  std::thread thread_;
};

}  // namespace retroinfer
