// A sequence that decodes, for tests and benchmarks of steps without an engine.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/executor/sequence.h"
#include "gpu_worker/executor/step_row.h"

namespace retroinfer::test_support {

struct DecodingSequence {
  std::vector<int32_t> prompt;
  Sequence sequence;
  int32_t next_token = -1;  // sampled last
  double kv_bytes_read = 0;
  double kv_bytes_full = 0;

  StepRow Row() {
    return {.sequence = &sequence.kv,
            .policy = sequence.policy,
            .sampling = &*sequence.sampling,
            .token = next_token,
            .position = sequence.kv.num_tokens};
  }
  void Take(const StepResult& result) {
    next_token = result.token->token;
    kv_bytes_read += result.bytes.read;
    kv_bytes_full += result.bytes.full;
  }
};

}  // namespace retroinfer::test_support
