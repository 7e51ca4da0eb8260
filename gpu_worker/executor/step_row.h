// The unit of a decode step: one token of one sequence. A sequence may have several neighbouring
// rows: tokens that are given, to be measured, or drafts of what the rows before are about to draw.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/executor/output_token.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/kv/sequence_kv.h"

namespace retroinfer {

// A step feeds `token` at `position` and looks at the distribution of the token behind it.
struct StepRow {
  enum class Task : uint8_t {
    kDraw,     // samples a token
    kMeasure,  // tells the log-probability and the rank of `target`
  };

  SequenceKv* sequence = nullptr;
  AttentionPolicy* policy = nullptr;  // the sequence's
  SamplingState* sampling = nullptr;  // the sequence's
  int32_t token = -1;                 // sampled, given or drafted; its KV does not exist yet
  int64_t position = 0;  // sequence->num_tokens, or the position of the row before plus 1
  Task task = Task::kDraw;
  int32_t target = -1;  // kMeasure
};

struct StepResult {
  const OutputToken* token = nullptr;  // the sampler's; valid until its next call
  AttentionPolicy::BytesRead bytes;    // of KV and index, all layers
  std::optional<double> unseen;        // AttentionPolicy::LastStepUnseen
  bool is_drawn = true;                // Sampler::IsDrawn
  bool lacked = false;                 // AttentionPolicy::LastStepLacked: the rest means nothing
};

}  // namespace retroinfer
