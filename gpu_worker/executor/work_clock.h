// Times the device's work, for the scheduler. Work is enqueued long before it is done: all work
// that was done between two polls of the device is measured as one. Work that takes far longer than
// expected is logged (round_log.h).
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/executor/round_log.h"
#include "gpu_worker/scheduler/cost_model.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class WorkClock {
 public:
  // Passes that may be on their way to the device at a time.
  static constexpr size_t kMaxInFlight = 64;

  // Device, stream and costs outlive the clock.
  static absl::StatusOr<WorkClock> Create(Device& device, Stream& stream, const CostModel& costs);

  // Work is about to be enqueued.
  void Begin();
  // Work was enqueued. REQUIRES: free() > 0.
  absl::Status Enqueued(const Work& work);
  // The host has waited until the device had done all work, `work` last.
  void Synchronized(const Work& work);
  // The host has waited until the device had done all work, whose time is no measurement.
  void Forget();
  // Asks the device which work is done.
  absl::Status Poll();

  // Returns the work measured since the last call.
  std::vector<MeasuredWork> TakeMeasured() { return std::exchange(measured_, {}); }

  size_t free() const { return kMaxInFlight - in_flight_.size(); }
  // Estimate for the work that is enqueued and not done.
  double seconds_in_flight() const;

 private:
  struct Item {
    Work work;
    size_t event;
  };
  WorkClock(Device& device, Stream& stream, const CostModel& costs)
      : device_(&device), stream_(&stream), costs_(&costs) {}

  void Measure(int64_t now_ns);

  Device* device_;
  Stream* stream_;
  const CostModel* costs_;
  RoundLog log_;
  std::vector<std::unique_ptr<Event>> events_;  // used in turn
  size_t next_event_ = 0;
  std::deque<Item> in_flight_;
  std::vector<MeasuredWork> measured_;
  Work done_;                // since begun_ns_
  bool is_running_ = false;  // work was begun that is neither observed nor all done
  int64_t begun_ns_ = 0;
};

}  // namespace retroinfer
