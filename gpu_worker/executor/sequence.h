// What the executor has of one sequence: its KV and how it attends, how it is sampled, and how far
// its prompt and its copies are.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/kv/suspended_kv.h"

namespace retroinfer {

// Threads: the executor's. Stays where it is from BeginGroup or CopyOut until nothing uses it any
// more (Executor::IsUnused).
struct Sequence {
  AttentionPolicy* policy = nullptr;
  SequenceKv kv;
  std::optional<SamplingState> sampling;  // from admission on

  // Alternatives to measure for each token of the prompt but the first; -1: none is measured.
  int32_t num_prompt_logprobs = -1;
  int64_t prompt_rows_measured = 0;

  std::optional<SuspendedKv::Copy> copy;  // while the KV is in host memory, or on its way
  int32_t num_suspensions = 0;            // so far

  uint64_t id() const { return kv.sequence_id; }
  // Tokens with KV behind the prompt.
  int64_t length() const { return kv.num_tokens - kv.prompt_tokens; }
  bool measures_prompt() const { return num_prompt_logprobs >= 0; }
  // Rows of the prompt that are to be measured: each but the last one measures the token behind it.
  int64_t PromptRowsLeft() const {
    return measures_prompt() ? kv.prompt_tokens - 1 - prompt_rows_measured : 0;
  }
};

}  // namespace retroinfer
