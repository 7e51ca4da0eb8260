#include "gpu_worker/scheduler/batch_row_rate.h"

#include <algorithm>
#include <cmath>

namespace retroinfer {
namespace {

constexpr double kMemorySeconds = 10;
// Sums below these are no basis for a rate.
constexpr double kLeastSeconds = 0.5;
constexpr double kLeastFreed = 2;

}  // namespace

void BatchRowRate::Update(const SchedulerInput& input, bool are_taken) {
  const double passed = last_ < 0 ? 0 : std::max(0.0, input.now - last_);
  last_ = input.now;
  // Only time in which all rows were taken tells how fast rows come free for those that wait.
  if (were_taken_) {
    const double decay = std::exp(-passed / kMemorySeconds);
    seconds_ = decay * seconds_ + passed;
    int64_t live = 0;
    for (const RequestDescription& request : input.requests) live += decoding_.contains(request.id);
    freed_ = decay * freed_ + static_cast<double>(std::ssize(decoding_) - live);
  }
  decoding_.clear();
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kDecoding) decoding_.insert(request.id);
  }
  were_taken_ = are_taken;
}

double BatchRowRate::SecondsUntilFree(int64_t count) const {
  if (count <= 0 || seconds_ < kLeastSeconds || freed_ < kLeastFreed) return 0;
  return static_cast<double>(count) * seconds_ / freed_;
}

}  // namespace retroinfer
