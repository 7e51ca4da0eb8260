// A worker without a device, on a clock of its own: carries out a planner's plans, and checks that
// they can be carried out.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu_worker/scheduler/cost_model.h"
#include "gpu_worker/scheduler/scheduler.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer::test_support {

struct SimulatedRequest {
  double arrival = 0;
  int64_t prompt_tokens = 1;
  int64_t output_tokens = 1;
  int64_t max_tokens = 1;  // what it asks for
  uint32_t tenant = 0;
  int32_t priority = 0;
  // Seconds after its arrival at which it ends, if it has no first token and is in no lane by then.
  double deadline = std::numeric_limits<double>::infinity();
  bool is_scoring = false;  // its output tokens are given
  // A text that is found in the arena before the prompt and that no pass reads; 0: none.
  uint64_t text = 0;
  int64_t text_tokens = 0;
  int64_t given_tokens = 0;  // the tail: behind the prompt, fed to steps

  // What became of it.
  bool is_refused = false;  // by Hooks::admit
  double first_token = -1;
  double end = -1;
  double longest_gap = 0;  // between two tokens
  int32_t suspensions = 0;
};

struct SimulatedWorker {
  SchedulerOptions options;
  std::vector<double> weights = {1};
  int64_t long_lane_tokens = 131072;
  int64_t short_lane_tokens = 8192;
  int64_t dense_blocks = 4096;
  int64_t arena_tokens = 262144;
  int64_t meta_blocks = 1 << 20;  // of the index of those with extents
  int64_t dense_below = 8192;     // longer ones need extents of the arena, and settle
  double noise = 0.1;             // of times, relative
  bool reserves_all = false;      // dense blocks for all of max_tokens when a request begins
  // Host blocks for the KV of suspended requests (options.preempts).
  int64_t suspended_blocks = 1024;
  // How much slower the device is at a time; empty: 1.
  std::function<double(double)> slowness = nullptr;
  // What the device takes, without noise, if no row is of a tail, and none cold; empty:
  // TrueSeconds().
  std::function<double(const Work&)> seconds = nullptr;
  // What a tail's row takes, and more for a row of a text that no step has attended to since
  // somebody has had it: times what an answer's row takes there.
  double tail_row = 1;
  double cold_row = 0;
  int64_t first_rows = 8;  // of a tail, in its first step
  // What the background takes for a layer of a prompt with segments, and how much slower the device
  // is meanwhile.
  double background_seconds_per_token = 0;
  double background_slowness = 1;
};

// What is told of requests, by their numbers. Empty: nothing.
struct Hooks {
  // Whether a request that comes, or whose cached tokens are known now, stays.
  std::function<bool(const SchedulerInput&, const RequestDescription&)> admit = nullptr;
  std::function<void(uint64_t)> on_read = nullptr;  // its first token is there
  std::function<void(uint64_t)> on_end = nullptr;
};

using Planner = std::function<StepPlan(const SchedulerInput&)>;
// Told what the device took.
using Observer = std::function<void(const Work&, double)>;

struct SimulationResult {
  std::vector<SimulatedRequest> requests;
  std::string broken;  // what a plan said that could not be done; empty: nothing
  double end = 0;
  double idle = 0;  // seconds with live requests and nothing planned
  int64_t rounds = 0;
  int64_t steps = 0, step_rows = 0;    // of decoding
  int64_t stalled_rows = 0;            // that steps went on without, for lack of memory
  std::vector<double> gaps;            // between two tokens of a request, all of them
  std::vector<double> served_at_half;  // tokens of work by tenant when half of the requests ended
};

// What the device takes, without noise: one H100 with a model of 8 billion parameters.
double TrueSeconds(const Work& work);

SimulationResult Simulate(const SimulatedWorker& worker, std::vector<SimulatedRequest> requests,
                          const Planner& planner, const Observer& observer, uint64_t seed,
                          const Hooks& hooks = {});

// As Simulate with a Scheduler.
SimulationResult SimulateScheduler(const SimulatedWorker& worker,
                                   std::vector<SimulatedRequest> requests, uint64_t seed);

// The policy before there was a scheduler: first come first served, a waiting request holds a batch
// row, one slice of one layer of one prompt before each decode step.
class FirstComeFirstServed {
 public:
  explicit FirstComeFirstServed(const SimulatedWorker& worker) : worker_(worker) {}
  StepPlan Plan(const SchedulerInput& input);

 private:
  const SimulatedWorker worker_;
  size_t next_lane_ = 0;
};

}  // namespace retroinfer::test_support
