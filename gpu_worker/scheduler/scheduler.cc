#include "gpu_worker/scheduler/scheduler.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/step_row_work.h"

namespace retroinfer {

StepPlan Scheduler::Plan(const SchedulerInput& input) {
  StepPlan plan;
  levels_.Update(input);
  LearnCosts(input);
  UpdateShares(input);
  lengths_.Update(input);
  queue_wait_.Update(input);
  outcomes_.Plan(input, plan);
  const bool any_outcome = !plan.empty();
  plan.let_go = input.unused;
  // All else depends on the outcomes: the caller describes them, and asks for the next plan at
  // once.
  if (any_outcome) return plan;
  suspensions_.Plan(input, plan);
  MemoryBank bank(input, lengths_);
  for (const uint64_t id : plan.suspend) bank.Suspend(id);
  growth_.Plan(input, bank, plan);
  PlanDecode(input, plan);
  std::vector<LaneDescription> lanes = input.lanes;
  if (MayAdmit(input)) {
    RequestOrder order(input, levels_, shares_, times_, preempting_);
    admissions_.Plan(input, bank, order, plan);
    groups_.Plan(input, order, lanes, plan);
  }
  measures_.Plan(input, plan);
  passes_.Plan(input, lanes, plan);
  drafts_.Plan(input, plan);
  tails_.PlanMore(plan);
  measures_.PlanMoreRows(input, plan);
  return plan;
}

void Scheduler::LearnCosts(const SchedulerInput& input) {
  if (input.forgets_costs) costs_ = CostModel();
  for (const MeasuredWork& measured : input.measured) {
    costs_.Observe(measured.work, measured.seconds);
  }
}

void Scheduler::UpdateShares(const SchedulerInput& input) {
  for (const uint32_t tenant : input.new_tenants) shares_.Renew(tenant);
  if (input.weights.size() == 1) {
    constexpr bool kWants[] = {true};
    shares_.Update(input.weights, kWants);
    return;
  }
  const auto wants = std::make_unique<bool[]>(input.weights.size());
  for (const RequestDescription& request : input.requests) wants[request.tenant] = true;
  shares_.Update(input.weights, std::span<const bool>(wants.get(), input.weights.size()));
}

void Scheduler::PlanDecode(const SchedulerInput& input, StepPlan& plan) {
  std::vector<const RequestDescription*> tails;
  bool generates = false;
  for (const RequestDescription* const request : rows_.NextStep(input, plan)) {
    if (FeedsTail(*request)) {
      tails.push_back(request);
      continue;
    }
    generates |= !request->measures_given;
    plan.decode.push_back(request->id);
    if (request->goes_live) plan.go_live.push_back(request->id);
    plan.step += WorkOfStepRow(*request);
    plan.step.steps = 1;
    shares_.Charge(request->tenant, 1);
  }
  tails_.Plan(input, tails, generates, plan);
}

// A request may begin if there is a row of the batch for it soon, or a lane to read its prompt in.
bool Scheduler::MayAdmit(const SchedulerInput& input) const {
  return rows_.NumFree(input) > 0 ||
         std::any_of(input.lanes.begin(), input.lanes.end(),
                     [](const LaneDescription& lane) { return lane.is_free; });
}

}  // namespace retroinfer
