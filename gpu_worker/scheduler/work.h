// What the device is asked to do, in the units that its time grows with.
#pragma once

#include <array>
#include <cstddef>

namespace retroinfer {

struct Work {
  double steps = 0;          // decode steps
  double step_rows = 0;      // sequences in them
  double step_context = 0;   // tokens of context of these sequences
  double passes = 0;         // runs of some rows of prompts through one layer
  double pass_rows = 0;      // rows of them
  double pass_depth = 0;     // for each row, the tokens before it
  double cached = 0;         // tokens of one layer that were read instead of computed
  double measured_rows = 0;  // of prompts, whose next token's log-probability is computed
  // For each prompt in a pass, the tokens that its last row sees: few rows of a long context take
  // longer than their part of many.
  double pass_reach = 0;
  // Seconds that all of it was expected to take, if the background builds segments meanwhile, which
  // takes some of the device away; else 0.
  double disturbed = 0;

  static constexpr size_t kParts = 10;
  std::array<double, kParts> Parts() const {
    return {steps,      step_rows, step_context,  passes,     pass_rows,
            pass_depth, cached,    measured_rows, pass_reach, disturbed};
  }
  Work& operator+=(const Work& other) {
    steps += other.steps;
    step_rows += other.step_rows;
    step_context += other.step_context;
    passes += other.passes;
    pass_rows += other.pass_rows;
    pass_depth += other.pass_depth;
    cached += other.cached;
    measured_rows += other.measured_rows;
    pass_reach += other.pass_reach;
    disturbed += other.disturbed;
    return *this;
  }
};

}  // namespace retroinfer
