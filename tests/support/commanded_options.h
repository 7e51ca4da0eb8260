// What both processes of commanded_process_test are made from: a small model, and memory that is
// little enough to be shared and given back.
#pragma once

#include "gpu_worker/executor/command_codec.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer::test_support {

inline InProcessWorkerOptions CommandedOptions() {
  InProcessWorkerOptions options = SmallWorker();
  options.max_batch = 4;
  options.preemption = true;
  options.stretches = {.least_tokens = 2048, .share_of_prefix = 0.5};
  return options;
}

inline CodecLimits CommandedLimits(const ModelConfig& config) {
  return {.vocab_size = config.vocab_size, .max_model_len = CommandedOptions().max_model_len};
}

}  // namespace retroinfer::test_support
