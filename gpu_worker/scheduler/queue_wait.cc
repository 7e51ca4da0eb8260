#include "gpu_worker/scheduler/queue_wait.h"

#include <algorithm>
#include <cstdint>

#include "gpu_worker/scheduler/step_row_work.h"

namespace retroinfer {

double QueueWait::Expected(const SchedulerInput& input) const {
  double work = input.seconds_in_flight;
  Work step{.steps = 1};
  int64_t rows = 0;
  int64_t without_row = -rows_.NumFree(input);
  for (const RequestDescription& request : input.requests) {
    without_row += request.phase == RequestPhase::kWaiting ||
                   request.phase == RequestPhase::kReady ||
                   request.phase == RequestPhase::kSuspended;
    if (request.phase >= RequestPhase::kDecoding) {
      ++rows;
      step += WorkOfStepRow(request);
    } else if (request.phase != RequestPhase::kReading &&
               request.phase != RequestPhase::kSettling) {
      work += times_.SecondsToRead(request);
    }
  }
  for (const LaneDescription& lane : input.lanes) work += times_.SecondsLeft(lane);
  if (rows == 0) return work;
  step.step_rows = std::min<double>(step.step_rows, options_.max_batch);
  step.tail_rows = std::min<double>(step.tail_rows, options_.max_batch);
  const double of_step = times_.costs().Seconds(step);
  const double left = TimeEstimates::SecondsForPrompts(options_.inter_token_target, of_step);
  // Prompts get `left` of each (left + of_step) seconds.
  return std::max(work * (left + of_step) / left, batch_row_rate_.SecondsUntilFree(without_row));
}

}  // namespace retroinfer
