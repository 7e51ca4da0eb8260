// Carries out the scheduler's plan, request by request: gives memory, reads prompts, decodes,
// copies KV to the host and back. The runner decides nothing, and observes nothing. If a request
// has ended since the plan was made, the runner does less than planned, never anything else.
//
// Blocks return to the pools, and extents to the store, in LetGo() only, once the executor has said
// that neither the background nor the device uses them any more.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "gpu_worker/engine/inbox.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/observation.h"
#include "gpu_worker/engine/output_delivery.h"
#include "gpu_worker/engine/prefix_directory.h"
#include "gpu_worker/engine/segment_exchange.h"
#include "gpu_worker/engine/tenant_directory.h"
#include "gpu_worker/executor/executor.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class PlanRunner {
 public:
  // All parts outlive the runner.
  struct Parts {
    LiveRequests* live = nullptr;
    Executor* executor = nullptr;
    SegmentExchange* exchange = nullptr;
    OutputDelivery* delivery = nullptr;
    Observation* observation = nullptr;
    Inbox* inbox = nullptr;
    TenantDirectory* tenants = nullptr;
    PrefixDirectory* prefixes = nullptr;
    EngineStats* counters = nullptr;
    std::vector<int32_t> eos_token_ids;
    std::function<void()> publish;  // publishes the statistics to other threads
  };
  explicit PlanRunner(Parts parts);

  void CarryOut(const StepPlan& plan);

 private:
  // In the order of StepPlan.
  void LetGo(uint64_t id);
  void CarryOutEnding(const StepPlan::Ending& ending);
  void Grant(LiveRequest& live);
  void PutBack(LiveRequest& live);
  void FinishSuspending(LiveRequest& live);
  void FinishResuming(LiveRequest& live);
  void Suspend(LiveRequest& live);
  void Grow(LiveRequest& live);
  void Resume(LiveRequest& live);
  void Admit(LiveRequest& live, bool asks_store);
  void BeginGroup(const StepPlan::Group& group);
  void RunPass(const StepPlan::Pass& pass);
  void FinishGroup(size_t lane_index);
  void EndGroup(const PrefillLane& lane, const absl::Status& status);
  void MeasurePrompts(const StepPlan::Measure& measure);
  void FinishPrompt(LiveRequest& live);
  void RunDecodeStep(const StepPlan& plan);
  // The row that feeds the request's token `ahead` of the next one.
  static StepRow RowOf(LiveRequest& live, int64_t ahead);
  void TakeToken(LiveRequest& live, const OutputToken& token, absl::Time now);

  LiveRequest* Find(uint64_t sequence_id);
  // The request if it is in that phase, else null: it may have ended since the plan was made.
  LiveRequest* FindIn(RequestPhase phase, uint64_t sequence_id);
  void LogCopy(const LiveRequest& live, const char* way, absl::Time begun) const;

  const Parts parts_;
  LiveRequests& live_;
  Executor& executor_;
  SegmentExchange& exchange_;
  OutputDelivery& delivery_;
  EngineStats& counters_;
  std::vector<LiveRequest*> batch_;  // of the step that is carried out, by row
  std::vector<StepRow> rows_;
};

}  // namespace retroinfer
