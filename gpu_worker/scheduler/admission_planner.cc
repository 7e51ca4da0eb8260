#include "gpu_worker/scheduler/admission_planner.h"

#include <vector>

#include "gpu_worker/scheduler/admission_budget.h"

namespace retroinfer {
namespace {

// Waiting requests that one plan tries to admit: bounds the plan's cost.
constexpr int kMaxTries = 32;

}  // namespace

void AdmissionPlanner::Plan(const SchedulerInput& input, MemoryBank& bank, RequestOrder& order,
                            StepPlan& plan) {
  AdmissionBudget budget(input, rows_.NumFree(input), options_.max_batch);
  blocked_.Update(input);
  const RequestDescription* head = blocked_.HeadOfLine(input);
  const RequestDescription* const arena_head = blocked_.HeadOfLineForArena(input);
  std::vector<const RequestDescription*> ready;
  for (int tries = 0; tries < kMaxTries && budget.may_ask_store(); ++tries) {
    const bool is_head = tries == 0 && head != nullptr;
    const RequestDescription* const request = order.NextInOrder([&](const RequestDescription& one) {
      return budget.MayTry(one) && (!is_head || &one == head);
    });
    if (request == nullptr && is_head) {
      // The head of line has no row or lane now. Memory that was reserved for it stays reserved.
      if (blocked_.WasHeadOfLine(*head)) blocked_.ReserveFor(*head, bank);
      continue;
    }
    if (request == nullptr) break;
    const bool is_suspended = request->phase == RequestPhase::kSuspended;  // has its extents
    const bool arena_is_reserved =
        arena_head != nullptr && arena_head != request && request->wants_extents && !is_suspended;
    const bool may_begin = !growth_.IsBehindStalled(*request, input.now) && bank.MayBegin(*request);
    if (!may_begin || !budget.has_table_row() || request->arena_is_full ||
        (arena_is_reserved && !is_head)) {
      blocked_.Block(input, *request, is_head);
      // If the reservation waits for ends, each end gives back a table row and a row of the batch.
      // Otherwise both are reserved here.
      if (is_head && blocked_.ReserveFor(*request, bank) == 0) {
        budget.TakeTableRow();
        budget.TakeBatchRow();
      }
      continue;
    }
    bank.Begin(*request);
    budget.TakeTableRow();
    if (is_suspended) {
      budget.TakeBatchRow();
      plan.resume.push_back(request->id);
      continue;
    }
    budget.TakeLane(*request);
    plan.admit.push_back(request->id);
    if (request->asks_store) {
      budget.AskStore();
      plan.ask.push_back(request->id);
    }
    order.Charge(*request);
    // A request that asks the store for nothing can be read at once.
    if (!request->asks_store) ready.push_back(request);
  }
  for (const RequestDescription* const request : ready) order.PutBack(*request);
}

}  // namespace retroinfer
