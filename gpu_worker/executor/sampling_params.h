// How the tokens of one sequence are drawn.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "text/constraint/constraint.h"

namespace retroinfer {

// Defaults are those of a request that sets nothing.
struct SamplingParams {
  float temperature = 1.0f;             // >= 0; 0 is greedy
  float top_p = 1.0f;                   // (0, 1]
  int32_t top_k = 0;                    // 0: off
  float min_p = 0.0f;                   // [0, 1]
  float repetition_penalty = 1.0f;      // (0, 10]
  float frequency_penalty = 0.0f;       // [-2, 2]
  float presence_penalty = 0.0f;        // [-2, 2]
  int32_t max_tokens = 0;               // >= 1; the server fills in its default
  int32_t min_tokens = 0;               // <= max_tokens; no EOS and no stop before
  std::vector<std::string> stop;        // at most 16, none empty
  std::vector<int32_t> stop_token_ids;  // at most 16; EOS tokens are added by the engine
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::vector<int32_t> shown_special_ids;  // in the text nevertheless; at most 16
  bool include_stop_str_in_output = false;
  uint64_t seed = 0;                    // the server draws one where the request has none
  int32_t num_logprobs = -1;            // -1: none; 0: of the chosen token; up to 20 alternatives
  std::map<int32_t, float> logit_bias;  // by token, each in [-100, 100]; at most 1024
  // What the text must look like, for the model's vocabulary. Null: anything.
  std::shared_ptr<const constraint::Constraint> constraint;
};

}  // namespace retroinfer
