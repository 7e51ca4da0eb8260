// For tests that suspend requests of their own choice in a plan of the scheduler.
#pragma once

#include <algorithm>

#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer::test_support {

// Whether the plan may suspend the request, too. A command has a sequence in one list alone, and
// the scheduler gives no blocks to a request that it suspends.
inline bool MaySuspend(const StepPlan& plan, const RequestDescription& request) {
  return request.can_suspend && std::ranges::count(plan.suspend, request.id) == 0 &&
         std::ranges::count(plan.grow, request.id) == 0;
}

}  // namespace retroinfer::test_support
