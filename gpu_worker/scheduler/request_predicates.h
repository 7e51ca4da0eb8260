// What several parts of the scheduler ask about a request.
#pragma once

#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Whether the prompt fits into the lane of short ones.
inline bool IsShort(const SchedulerInput& input, const RequestDescription& request) {
  return input.lanes.size() > 1 &&
         request.prompt_tokens + request.later_tokens <= input.lanes.back().max_tokens;
}

// Whether the request decodes, and lacks memory for its next token.
inline bool IsStalled(const RequestDescription& request) {
  return request.phase == RequestPhase::kDecoding && request.free_tokens <= 0;
}

// Whether the request needs device memory to begin or to be resumed.
inline bool WaitsForMemory(const RequestDescription& request) {
  return request.phase == RequestPhase::kWaiting || request.phase == RequestPhase::kSuspended;
}

}  // namespace retroinfer
