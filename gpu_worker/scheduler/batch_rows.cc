#include "gpu_worker/scheduler/batch_rows.h"

#include <algorithm>

#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {

std::vector<const RequestDescription*> BatchRows::NextStep(const SchedulerInput& input,
                                                           const StepPlan& plan) const {
  std::vector<const RequestDescription*> batch;
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kDecoding || !request.can_decode) continue;
    const auto is_in = [&request](const std::vector<uint64_t>& ids) {
      return std::find(ids.begin(), ids.end(), request.id) != ids.end();
    };
    if (IsStalled(request) && !is_in(plan.grow)) continue;
    if (!is_in(plan.suspend)) batch.push_back(&request);
  }
  // The oldest requests keep their rows: they end first, and requests do not take turns.
  if (std::ssize(batch) > options_.max_batch) {
    std::stable_sort(batch.begin(), batch.end(), [](const auto* a, const auto* b) {
      return a->decoding_since < b->decoding_since;
    });
    batch.resize(static_cast<size_t>(options_.max_batch));
  }
  return batch;
}

int64_t BatchRows::NumFree(const SchedulerInput& input) const {
  int64_t rows = options_.max_batch;
  for (const RequestDescription& request : input.requests) {
    const bool decodes = request.phase == RequestPhase::kDecoding && !IsStalled(request);
    rows -= decodes || request.phase == RequestPhase::kSettling ||
            request.phase == RequestPhase::kReturning;
  }
  for (const LaneDescription& lane : input.lanes) {
    if (times_.SecondsLeft(lane) < kAheadSeconds && lane.layer < options_.num_layers) {
      rows -= std::ssize(lane.members);
    }
  }
  return rows;
}

}  // namespace retroinfer
