// Which tokens end a request: its stop tokens and the model's end-of-sequence tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/executor/sampling_params.h"

namespace retroinfer {

// Threads: one at a time.
class StopTokens {
 public:
  StopTokens(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids)
      : tokens_(sampling.stop_token_ids), min_tokens_(sampling.min_tokens) {
    if (sampling.ignore_eos) return;
    tokens_.insert(tokens_.end(), eos_token_ids.begin(), eos_token_ids.end());
  }

  // Counts the next token. Returns whether it ends the request: the first min_tokens never do.
  bool Append(int32_t token) {
    ++num_tokens_;
    const bool ends = num_tokens_ > min_tokens_ &&
                      std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end();
    if (ends) matched_ = token;
    return ends;
  }
  int64_t num_tokens() const { return num_tokens_; }
  int32_t matched() const { return matched_; }  // -1: none

 private:
  std::vector<int32_t> tokens_;  // at most a few dozen
  int64_t min_tokens_;
  int64_t num_tokens_ = 0;
  int32_t matched_ = -1;
};

}  // namespace retroinfer
