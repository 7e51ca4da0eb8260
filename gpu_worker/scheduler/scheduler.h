// Decides what the engine does next: which requests end or have finished their prompts, which get
// memory, which prompts are read together, which rows go through which layer now, and which
// requests decode. Pure logic: no device, no clock; the same inputs give the same plans.
//
//   time     Between two decode steps as many rows of prompts are read as fit into the target
//            between two tokens of a request, less what the step takes. While nothing decodes there
//            is no limit, but never more is enqueued than a new request can wait for.
//   order    Requests of a higher priority first, then those of the tenant that was served least
//            for its weight, then the request with the least left to compute. A waiting request
//            moves up: a level of priority each ten seconds, up to the highest there is, and a
//            tenth of a second of its work for each second. So no request waits for ever.
//   lanes    Short prompts have a lane of their own beside the long prompt's lane and go first
//            there, but a lane that has work gets a fifth of the time in any case.
//   sharing  Prompts that begin with the same cached segments (a prefix group) are read as one, in
//            either lane, as long as joining saves more than joining adds. If the prefix group had
//            several requests a short while ago, its first request waits for the others, at most a
//            tenth of the seconds that one shared read saves.
//   memory   A request begins with the blocks that it needs soon and gets more as it grows, only
//            ever so that all requests that hold blocks can end (memory_bank.h). A request that
//            lacks blocks for its next token is stalled: it is left out of steps. A waiting request
//            that is blocked lets others overtake for two seconds. Then it may become the head of
//            line, for which freed memory is reserved: extents go to nobody else, and of the blocks
//            as many are reserved as let it begin once the requests have ended that held blocks
//            when it became the head of line and that are expected to end first.
//   measure  Rows of prompts whose log-probabilities were asked for get half of the time that
//            prompts get. Tokens of a given continuation share a step as far as rows of the batch
//            are free. The round stays within the target if the step generates for a client; if
//            nobody waits for a next token, the step may take kMostOfGiven times its time.
//   tails    Ends of prompts that steps are fed get half of the time that prompts get, and what
//            prompts leave. A step that generates for a client has rows of a tail as far as the
//            target allows, but one at least.
//   batch    A row of the batch belongs to a request that decodes or will within a second.
//   preempt  Where preemption is allowed, decoding requests are suspended for requests of a higher
//            class that wait for a row of the batch or for memory. A suspended request is resumed
//            in the order of new requests, with nothing left to read.
//
// Each part can be read alone, in the order in which a plan is made:
//
//   outcome_planner.h     what earlier plans began and what has become of it
//   suspension_planner.h  who is suspended for whom (preempting_requests.h)
//   block_growth.h        which decoding requests get more blocks, and which are stalled
//   batch_rows.h          who decodes, and how many rows of the batch are free
//   admission_planner.h   who begins or is resumed (request_order.h, blocked_requests.h)
//   group_planner.h       which prompts are read together (prefix_groups.h)
//   tail_planner.h        which tokens of tails steps are fed
//   measure_planner.h     which given tokens are scored
//   draft_planner.h       which drafted tokens are tried
//   pass_planner.h        which rows go through which layer
//
// What they share: seconds (time_estimates.h, from cost_model.h), priorities (priority_levels.h),
// tenants' shares (tenant_shares.h), expected outputs (output_lengths.h), and what the bank of
// blocks grants (memory_bank.h).
#pragma once

#include "gpu_worker/scheduler/admission_planner.h"
#include "gpu_worker/scheduler/batch_rows.h"
#include "gpu_worker/scheduler/block_growth.h"
#include "gpu_worker/scheduler/blocked_requests.h"
#include "gpu_worker/scheduler/cost_model.h"
#include "gpu_worker/scheduler/draft_planner.h"
#include "gpu_worker/scheduler/group_planner.h"
#include "gpu_worker/scheduler/measure_planner.h"
#include "gpu_worker/scheduler/outcome_planner.h"
#include "gpu_worker/scheduler/output_lengths.h"
#include "gpu_worker/scheduler/pass_planner.h"
#include "gpu_worker/scheduler/preempting_requests.h"
#include "gpu_worker/scheduler/priority_levels.h"
#include "gpu_worker/scheduler/queue_wait.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/suspension_planner.h"
#include "gpu_worker/scheduler/tail_planner.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    its parts and what they remember from plan to plan; nothing of the requests.
class Scheduler {
 public:
  // What users of the scheduler count on; the parts say what they mean.
  static constexpr double kLevelSeconds = PriorityLevels::kLevelSeconds;
  static constexpr double kLeastShare = PassPlanner::kLeastShare;
  static constexpr double kPatience = BlockedRequests::kPatience;  // seconds
  static constexpr int32_t kMaxSuspensions = SuspensionPlanner::kMaxSuspensions;
  static constexpr double kLeastStay = SuspensionPlanner::kLeastStay;  // seconds

  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}
  Scheduler(const Scheduler&) = delete;  // the parts refer to each other
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns the next plan. The scheduler takes the plan as done, and charges tenants for it.
  //
  // REQUIRES: input.lanes is not empty and as long in every call; tenants are in input.weights.
  // Cost:     O(requests), and O(requests * max_batch) where requests may begin.
  StepPlan Plan(const SchedulerInput& input);

  const SchedulerOptions& options() const { return options_; }
  CostModel& costs() { return costs_; }
  const CostModel& costs() const { return costs_; }
  const TenantShares& shares() const { return shares_; }

  // As TimeEstimates::SecondsToRead(), QueueWait::Expected() and
  // TimeEstimates::EarliestFirstToken().
  double SecondsToRead(const RequestDescription& request) const {
    return times_.SecondsToRead(request);
  }
  double ExpectedWait(const SchedulerInput& input) const { return queue_wait_.Expected(input); }
  double EarliestFirstToken(const SchedulerInput& input, const RequestDescription& request) const {
    return times_.EarliestFirstToken(input, request);
  }
  // Whether costs() has observed any work: before, all seconds above are guesses.
  bool knows_costs() const { return costs_.knows_speed(); }

 private:
  void LearnCosts(const SchedulerInput& input);
  void UpdateShares(const SchedulerInput& input);
  void PlanDecode(const SchedulerInput& input, StepPlan& plan);
  bool MayAdmit(const SchedulerInput& input) const;

  const SchedulerOptions options_;
  CostModel costs_;
  TenantShares shares_;
  OutputLengths lengths_;
  PriorityLevels levels_;
  TimeEstimates times_{options_, costs_};
  BatchRows rows_{options_, times_};
  QueueWait queue_wait_{options_, times_, rows_};
  PreemptingRequests preempting_{shares_};
  BlockedRequests blocked_{preempting_};
  BlockGrowth growth_{preempting_};
  OutcomePlanner outcomes_{times_};
  SuspensionPlanner suspensions_{options_, shares_,  rows_,      lengths_,
                                 growth_,  blocked_, preempting_};
  AdmissionPlanner admissions_{options_, rows_, growth_, blocked_};
  GroupPlanner groups_{options_, times_, rows_};
  MeasurePlanner measures_{options_, levels_, times_, shares_};
  PassPlanner passes_{options_, levels_, times_, shares_};
  DraftPlanner drafts_{options_, times_, shares_};
  TailPlanner tails_{options_, levels_, times_, shares_};
};

}  // namespace retroinfer
