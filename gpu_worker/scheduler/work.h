// Work of the device, in the units that its time grows with: the terms of the cost model's
// regression (cost_model.h).
#pragma once

#include <array>
#include <cstddef>

namespace retroinfer {

struct Work {
  double steps = 0;          // decode steps
  double step_rows = 0;      // rows of the decode steps, without those of tails
  double step_context = 0;   // tokens of context, summed over these rows
  double passes = 0;         // a pass: some rows of prompts through one layer
  double pass_rows = 0;      // rows of the passes
  double pass_depth = 0;     // tokens before a row, summed over the rows of the passes
  double cached = 0;         // tokens of one layer whose KV is read instead of computed
  double measured_rows = 0;  // rows of prompts that are scored (logits and a log-probability)
  // Tokens before a row, summed over the rows of the passes that attend to chosen blocks of these:
  // such rows count neither in pass_depth nor in pass_reach.
  double sparse_depth = 0;
  // Tokens that the last row of a prompt attends to, summed over the prompts of a pass: ten rows of
  // a long context take more than a hundredth of the time of a thousand.
  double pass_reach = 0;
  // Of the draft model: steps, their rows, and rows of its layers that read texts.
  double draft_steps = 0;
  double draft_rows = 0;
  double draft_reads = 0;
  // Of decode steps: rows of tails (ends of prompts that are fed to steps), and tokens of context,
  // summed over these rows. A tail's rows may cost less than answers' rows, since they read one
  // index, or more, since many rows make larger products: they count here alone.
  double tail_rows = 0;
  double tail_context = 0;
  // Of the context of a step's rows, whosever they are: tokens to which no step has attended since
  // their index came to the device. Most pages that such rows retrieve are missed.
  double cold_context = 0;
  // Expected seconds of this work, if index construction runs concurrently on the device; else 0. A
  // term of the regression: its cost is the share of time that construction takes away.
  double seconds_beside_clustering = 0;

  static constexpr size_t kParts = 17;
  std::array<double, kParts> Parts() const {
    return {steps,
            step_rows,
            step_context,
            passes,
            pass_rows,
            pass_depth,
            cached,
            measured_rows,
            pass_reach,
            sparse_depth,
            draft_steps,
            draft_rows,
            draft_reads,
            tail_rows,
            tail_context,
            cold_context,
            seconds_beside_clustering};
  }
  // Whether there is nothing whose time could be measured.
  bool empty() const { return passes + steps + draft_steps + draft_reads == 0; }
  Work& operator+=(const Work& other) {
    steps += other.steps;
    step_rows += other.step_rows;
    step_context += other.step_context;
    passes += other.passes;
    pass_rows += other.pass_rows;
    pass_depth += other.pass_depth;
    cached += other.cached;
    measured_rows += other.measured_rows;
    sparse_depth += other.sparse_depth;
    pass_reach += other.pass_reach;
    draft_steps += other.draft_steps;
    draft_rows += other.draft_rows;
    draft_reads += other.draft_reads;
    tail_rows += other.tail_rows;
    tail_context += other.tail_context;
    cold_context += other.cold_context;
    seconds_beside_clustering += other.seconds_beside_clustering;
    return *this;
  }
};

}  // namespace retroinfer
