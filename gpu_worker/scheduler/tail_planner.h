// Plans the rows of tails: ends of prompts that are fed to decode steps (prefill `indexed`). A
// tail's client waits for the end of the tail, as the client of a prompt does, so that tails get of
// the time that prompts get, and answers keep the target between two tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/scheduler/priority_levels.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    the order of the tails of the plan that is being made; all arguments outlive the object.
class TailPlanner {
 public:
  // Share of the time that prompts get beside answers that tails get while prompts are read.
  static constexpr double kShareOfPrompts = 0.5;

  // `shares` is charged for what is planned.
  TailPlanner(const SchedulerOptions& options, const PriorityLevels& levels,
              const TimeEstimates& times, TenantShares& shares)
      : options_(options), levels_(levels), times_(times), shares_(shares) {}

  // Adds rows of `tails` to plan.decode, for tails' share of the time for prompts: all of the first
  // tail, then of the next one. Tails go by level, then by what their tenants were served, then by
  // what is left of them, less what they have aged: taken in turn, all would wait for the last one.
  // The first one has a run of every step, whatever the run takes: a row, unless rows share what
  // they retrieve (RequestDescription::rows_of_run).
  //
  // REQUIRES: plan.decode has the rows of all answers, and no others; tails can decode.
  void Plan(const SchedulerInput& input, const std::vector<const RequestDescription*>& tails,
            bool generates, StepPlan& plan);
  // Adds to plan.decode: fills the step's free rows with tokens of the same tails, for the time
  // that passes, measures and drafts have left.
  //
  // REQUIRES: Plan() of this plan; all but rows of given tokens is planned.
  void PlanMore(StepPlan& plan);

 private:
  struct Tail {
    const RequestDescription* request = nullptr;
    int64_t level = 0;
    double served = 0;
    double score = 0;  // seconds
    int64_t left = 0;  // rows that the step may have beside those that it has
    bool has_row() const { return left <= request->more_rows; }  // of the step
  };
  Tail Describe(const SchedulerInput& input, const RequestDescription& request) const;
  static bool IsBefore(const Tail& a, const Tail& b);
  // Adds rows of tails in order, while the step takes at most `limit` seconds.
  void AddRows(double limit, StepPlan& plan);
  // Rows that the tail's next run has, at least 1 of a tail that may have any.
  static int64_t NextRun(const Tail& tail);
  // Adds the rows of the tail's next run, unless the step takes longer than `limit` seconds then,
  // or has no room for them. Returns whether it did.
  bool AddRun(double limit, Tail& tail, StepPlan& plan);
  // Seconds that prompts and tails get beside such a step.
  double SecondsForPrompts() const {
    return TimeEstimates::SecondsForPrompts(times_.SecondsOfRound(), least_);
  }

  const SchedulerOptions& options_;
  const PriorityLevels& levels_;
  const TimeEstimates& times_;
  TenantShares& shares_;
  std::vector<Tail> tails_;  // in the order in which they get rows
  bool generates_ = false;   // the step generates for a client
  // Seconds of a step of answers' rows alone; if it generates for nobody, also of a row of each
  // tail.
  double least_ = 0;
};

}  // namespace retroinfer
