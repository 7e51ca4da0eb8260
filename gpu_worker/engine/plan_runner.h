// Carries out the scheduler's plan: turns the plan into commands for the executor, and what comes
// of them into the phases of requests and what their clients are told. The runner decides nothing,
// and observes nothing. If a request has ended since the plan was made, the runner does less than
// planned, never anything else.
//
// Blocks return to the pools, and extents to the store, when a request is let go only, once the
// executor has said that neither the background nor the device uses them any more.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "gpu_worker/engine/inbox.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/observation.h"
#include "gpu_worker/engine/output_delivery.h"
#include "gpu_worker/engine/prefix_directory.h"
#include "gpu_worker/engine/segment_exchange.h"
#include "gpu_worker/engine/tenant_directory.h"
#include "gpu_worker/executor/command_result.h"
#include "gpu_worker/executor/command_runner.h"
#include "gpu_worker/executor/step_command.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class PlanRunner {
 public:
  // All parts outlive the runner.
  struct Parts {
    LiveRequests* live = nullptr;
    CommandRunner* commands = nullptr;
    SegmentExchange* exchange = nullptr;
    OutputDelivery* delivery = nullptr;
    Observation* observation = nullptr;
    Inbox* inbox = nullptr;
    TenantDirectory* tenants = nullptr;
    PrefixDirectory* prefixes = nullptr;
    EngineStats* counters = nullptr;
    std::function<void()> publish;  // publishes the statistics to other threads
  };
  explicit PlanRunner(Parts parts);

  void CarryOut(const StepPlan& plan);

 private:
  using Requests = std::vector<LiveRequest*>;

  // Each of these is a command, or several, and what comes of it; in the order of StepPlan.
  void ChangeMemory(const StepPlan& plan);
  void ReadPrompts(const StepPlan& plan);
  void FinishPrompts(const StepPlan& plan);
  // What the draft model does before the step. It is no command: no sequence is changed by it.
  void RunDraftModel(const StepPlan& plan);
  void RunDecodeStep(const StepPlan& plan);

  void CarryOutEnding(const StepPlan::Ending& ending);
  void LetGo(uint64_t id);
  void Granted(LiveRequest& live);
  void WasPutBack(LiveRequest& live);
  void Left(LiveRequest& live);
  void Rejoined(LiveRequest& live);
  void Suspended(LiveRequest& live);
  void Resumed(LiveRequest& live);
  void Admitted(LiveRequest& live, bool asks_store);
  void BeginGroups(const StepPlan& plan);
  void RunPasses();
  void TakeReadParts();
  void TakeFirstTokens();
  // The request's first token is drawn, or its first one measured.
  void NoteFirst(LiveRequest& live, absl::Time now);
  void Finished(LiveRequest& live);
  // Whether a row of the plan feeds a draft that was not made: the draft model said nothing more.
  bool LacksDraft(LiveRequest& live, const StepPlan& plan) const;
  void DraftModelFailed(const absl::Status& status);
  // The row that feeds the request's token `ahead` of the next one.
  static StepCommand::Row RowOf(const LiveRequest& live, int64_t ahead);
  // `is_more`: the row is not the request's first one of the step.
  void TakeRow(LiveRequest& live, const CommandResult::Row& row, bool is_more, absl::Time now);
  void TakeToken(LiveRequest& live, const DrawnToken& token, absl::Time now);
  // A token of the prompt that the step was fed: nothing is drawn behind it.
  void TakeGiven(LiveRequest& live, absl::Time now);
  void GiveBack(std::span<LiveRequest* const> grown);

  // Carries command_ out, fills result_, ends the requests that have failed, and clears command_.
  void Send();
  // Requests of those ids that are in the phase.
  Requests AllIn(RequestPhase phase, std::span<const uint64_t> ids);
  LiveRequest* Find(uint64_t sequence_id);
  // The request if it is in that phase, else null: it may have ended since the plan was made.
  LiveRequest* FindIn(RequestPhase phase, uint64_t sequence_id);
  void LogCopy(const LiveRequest& live, const char* way, absl::Time begun) const;

  const Parts parts_;
  LiveRequests& live_;
  CommandRunner& commands_;
  Executor& executor_;  // is looked at
  SegmentExchange& exchange_;
  OutputDelivery& delivery_;
  EngineStats& counters_;
  StepCommand command_;  // that comes next
  CommandResult result_;
  Requests batch_;  // of the step that is carried out, by row
  Requests grown_;  // of the batch: those that may give blocks back
};

}  // namespace retroinfer
