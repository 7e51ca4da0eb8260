// Times what the device does, for the scheduler. Work is enqueued long before it is done: what was
// done between two looks at the device is measured as one. What is far from what was expected is
// logged (round_log.h).
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

  // All outlive the clock. `costs` says what is expected.
  static absl::StatusOr<WorkClock> Create(Device& device, Stream& stream, const CostModel& costs);

  // Work is about to be enqueued.
  void Begin();
  // Work was enqueued. REQUIRES: free() > 0.
  absl::Status Enqueued(const Work& work);
  // The host has waited for all there was, `work` the last of it.
  void Synchronized(const Work& work);
  // Looks at what is done by now.
  absl::Status Poll();

  // What was measured since the last call.
  std::vector<MeasuredWork> TakeMeasured() { return std::exchange(measured_, {}); }

  size_t free() const { return kMaxInFlight - in_flight_.size(); }
  // What is on its way, estimated.
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
