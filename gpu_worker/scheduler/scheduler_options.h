// What a scheduler is configured with.
#pragma once

#include <cstdint>

namespace retroinfer {

// How much is enqueued while nothing decodes, as shares of the target between two tokens: a new
// request waits until the device has done all of that.
struct AheadShares {
  double all = 0.5;    // all passes together
  double pass = 0.25;  // one pass
};

struct SchedulerOptions {
  uint32_t num_layers = 1;
  int64_t max_rows = 1024;  // of a pass
  int32_t max_batch = 8;    // rows of a decode step, and members of a group
  // Further rows of a step, which tails alone get (PrefillKind::kIndexed), so that there is room
  // for a run of one whatever else decodes.
  int32_t more_tail_rows = 0;
  // Seconds between two tokens of a request while other prompts are read.
  double inter_token_target = 0.05;
  bool preempts = false;  // decoding requests may be suspended for others
  AheadShares ahead;
};

}  // namespace retroinfer
