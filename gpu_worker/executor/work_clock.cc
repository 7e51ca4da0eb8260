#include "gpu_worker/executor/work_clock.h"

#include "absl/time/clock.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// While the device is never seen idle, the work of this much time is measured as one.
constexpr int64_t kLeastNs = 5'000'000;

}  // namespace

absl::StatusOr<WorkClock> WorkClock::Create(Device& device, Stream& stream,
                                            const CostModel& costs) {
  WorkClock clock(device, stream, costs);
  clock.events_.resize(kMaxInFlight);
  for (auto& event : clock.events_) {
    ASSIGN_OR_RETURN(event, device.CreateEvent());
  }
  return clock;
}

void WorkClock::Begin() {
  if (is_running_) return;
  is_running_ = true;
  begun_ns_ = absl::GetCurrentTimeNanos();
}

absl::Status WorkClock::Enqueued(const Work& work) {
  RI_CHECK(free() > 0);
  const size_t event = next_event_++ % kMaxInFlight;
  RETURN_IF_ERROR(stream_->Record(*events_[event]));
  in_flight_.push_back({work, event});
  return absl::OkStatus();
}

void WorkClock::Synchronized(const Work& work) {
  for (const Item& item : in_flight_) done_ += item.work;
  in_flight_.clear();
  done_ += work;
  Measure(absl::GetCurrentTimeNanos());
  is_running_ = false;
}

void WorkClock::Forget() {
  in_flight_.clear();
  done_ = {};
  is_running_ = false;
}

absl::Status WorkClock::Poll() {
  while (!in_flight_.empty()) {
    ASSIGN_OR_RETURN(const bool is_done, device_->IsDone(*events_[in_flight_.front().event]));
    if (!is_done) break;
    done_ += in_flight_.front().work;
    in_flight_.pop_front();
  }
  if (!is_running_) return absl::OkStatus();
  const int64_t now_ns = absl::GetCurrentTimeNanos();
  if (in_flight_.empty() || (done_.passes > 0 && now_ns - begun_ns_ >= kLeastNs)) Measure(now_ns);
  is_running_ = !in_flight_.empty();
  return absl::OkStatus();
}

void WorkClock::Measure(int64_t now_ns) {
  // If somebody has set the wall clock, the difference is no measurement.
  if (is_running_ && now_ns > begun_ns_ && !done_.empty()) {
    const double seconds = static_cast<double>(now_ns - begun_ns_) * 1e-9;
    log_.Add(*costs_, done_, seconds, absl::FromUnixNanos(now_ns));
    measured_.push_back({done_, seconds});
  }
  done_ = {};
  begun_ns_ = now_ns;
}

double WorkClock::seconds_in_flight() const {
  Work work;
  for (const Item& item : in_flight_) work += item.work;
  return costs_->Seconds(work);
}

}  // namespace retroinfer
