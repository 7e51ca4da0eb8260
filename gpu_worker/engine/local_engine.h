// The engine of one worker: one model on one device.
//
// The engine keeps requests: from the mail that brings them to the last byte that they held, and
// what their clients are told. One thread runs the loop: take mail, describe what there is
// (observation.h), ask the scheduler for a plan, carry the plan out (plan_runner.h): on the device
// by commands for the executor (executor/command_runner.h), towards the store by the exchange
// (segment_exchange.h), towards clients by the delivery (output_delivery.h).
//
// Owns:    the executor, and the runner of its commands. Tokenizer and store, and what
// ExecutorParts does not own, belong to the
//          caller and outlive the engine.
// Threads: as Engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gpu_worker/engine/answer_growth.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/engine_stats_board.h"
#include "gpu_worker/engine/inbox.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/engine/observation.h"
#include "gpu_worker/engine/output_delivery.h"
#include "gpu_worker/engine/output_thread.h"
#include "gpu_worker/engine/plan_runner.h"
#include "gpu_worker/engine/prefix_directory.h"
#include "gpu_worker/engine/segment_exchange.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/engine/tenant_directory.h"
#include "gpu_worker/executor/command_runner.h"
#include "gpu_worker/executor/executor.h"
#include "gpu_worker/scheduler/scheduler.h"

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
  bool reserves_all = false;            // device memory for all of max_tokens when a request begins
  BlockChoice sparse = kSparsePrefill;  // of prompts that ask for PrefillKind::kSparse
  bool drafts = false;  // steps try drafts of what comes next, of requests that allow it
  // Called by the loop, on its thread, once a round, however idle it is; may be empty.
  std::function<void()> on_progress;
  // Called by the loop, on its thread, with what the scheduler was told and the plan that it made,
  // each round, also where the plan is empty, and before it is carried out; may be empty. May
  // suspend further requests, or replace the plan by another that can be carried out now.
  std::function<void(const SchedulerInput&, StepPlan&)> on_plan;
  // Of all commands for the executor. Another one that is given them computes the same tokens.
  CommandHooks hooks;
};

// What the engine runs on. Plain pointers are not owned.
struct EngineParts {
  ExecutorParts executor;
  const Tokenizer* tokenizer = nullptr;
  SegmentStore* store = nullptr;
  std::span<std::byte> arena;  // the store's, as the host sees it
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
  LocalEngine(const LocalEngineOptions& options, const EngineParts& parts,
              std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
              std::unique_ptr<CommandRunner> commands);

  void Loop();
  bool RunOnce();  // returns whether anything was done for a request

  // Mail.
  void TakeMail(absl::Duration timeout);
  void TakeSubmission(Submission submission);
  // Lets the executor know the request's sequence.
  Sequence* Open(LiveRequest& live);
  std::unique_ptr<BlockSaver> MakeSaver();

  // Tokens of the prompt's end that steps are fed, of PrefillKind::kIndexed: by the request's own
  // numbers, whatever else is there.
  int64_t GivenTokens(const GenerationRequest& request) const;
  AttentionPolicy& PolicyOf(const GenerationRequest& request) const;
  // Refuses sparse prefill where it cannot be had; makes prompts exact of which no row would
  // choose.
  absl::Status SettlePrefill(GenerationRequest& request) const;
  absl::Status CheckFits(const GenerationRequest& request) const;
  void ShortenToFit(GenerationRequest& request) const;
  void TendBackground(bool worked);
  void TellExpectedWait(const SchedulerInput& input);
  void UpdateStats();

  const LocalEngineOptions options_;
  const Tokenizer& tokenizer_;
  SegmentStore& store_;
  EngineLimits limits_;
  // Shared with the store's answers, which may come after the engine's end.
  const std::shared_ptr<Inbox> inbox_;

  // Of the engine's thread.
  const std::unique_ptr<Scheduler> scheduler_;
  const std::unique_ptr<Executor> executor_;
  const std::unique_ptr<CommandRunner> commands_;
  EngineStatsBoard stats_;
  SegmentExchange exchange_;
  AnswerGrowth growth_;
  LiveRequests live_;
  TenantDirectory tenants_;
  PrefixDirectory prefixes_;
  Observation observation_;
  OutputThread output_;
  OutputDelivery delivery_;
  PlanRunner runner_;
  absl::Time next_expected_wait_ = absl::InfinitePast();
  // A scheduler elsewhere that is told the same requests gives them the same ids.
  uint64_t next_sequence_id_ = 1;
  bool background_is_urgent_ = false;

  DraftModelRecord draft_model_record_;

  std::atomic<bool> stopping_ = false;
  std::atomic<bool> cancel_all_ = false;
  std::atomic<bool> start_counting_ = false;
  std::atomic<bool> forget_costs_ = false;
  std::thread thread_;
};

}  // namespace retroinfer
