// A token that was drawn or measured, and what the model's distribution says about the token.
#pragma once

#include <cstdint>
#include <vector>

namespace retroinfer {

struct TokenLogprob {
  int32_t token;
  float logprob;  // of the model's distribution, before everything in SamplingParams
};

struct OutputToken {
  int32_t token;
  float logprob;                           // as TokenLogprob's
  std::vector<TokenLogprob> alternatives;  // num_logprobs of them, largest first
  int32_t rank = 0;                        // 1 is what greedy takes; 0: not asked for
};

}  // namespace retroinfer
