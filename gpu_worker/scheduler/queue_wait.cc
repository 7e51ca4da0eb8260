#include "gpu_worker/scheduler/queue_wait.h"

#include <algorithm>
#include <cstdint>

namespace retroinfer {

double QueueWait::Expected(const SchedulerInput& input) const {
  double work = input.seconds_in_flight;
  double context = 0;
  int64_t rows = 0;
  int64_t without_row = -rows_.NumFree(input);
  for (const RequestDescription& request : input.requests) {
    without_row += request.phase == RequestPhase::kWaiting ||
                   request.phase == RequestPhase::kReady ||
                   request.phase == RequestPhase::kSuspended;
    if (request.phase >= RequestPhase::kDecoding) {
      ++rows;
      context += static_cast<double>(request.context);
    } else if (request.phase != RequestPhase::kReading &&
               request.phase != RequestPhase::kSettling) {
      work += times_.SecondsToRead(request);
    }
  }
  for (const LaneDescription& lane : input.lanes) work += times_.SecondsLeft(lane);
  if (rows == 0) return work;
  rows = std::min<int64_t>(rows, options_.max_batch);
  const double step = times_.costs().Seconds(
      {.steps = 1, .step_rows = static_cast<double>(rows), .step_context = context});
  const double left = TimeEstimates::SecondsForPrompts(options_.inter_token_target, step);
  // Prompts get `left` of each (left + step) seconds.
  return std::max(work * (left + step) / left, batch_row_rate_.SecondsUntilFree(without_row));
}

}  // namespace retroinfer
