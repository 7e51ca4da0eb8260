// Which requests a load test sends, and when: all from a seed, so that a run can be repeated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace retroinfer::client {

struct LoadPlanOptions {
  int32_t num_prompts = 0;
  int64_t input_len = 0;    // tokens of each prompt, the shared prefix included
  int64_t prefix_len = 0;   // leading tokens that all prompts share
  double request_rate = 0;  // requests a second, Poisson arrivals; infinite: all at once
  int32_t vocab_size = 0;   // token ids are below it
  std::span<const int32_t> excluded_tokens;  // never in a prompt: end-of-sequence tokens
  uint64_t seed = 0;
};

struct PlannedRequest {
  absl::Duration arrival;  // since the start of the test
  std::vector<int32_t> token_ids;
  int32_t output_len = 0;     // tokens to generate; 0: as LoadRunOptions::request says
  std::string request_class;  // requests of one class are reported together; empty: of none
  int32_t priority = 0;
  std::string tenant;
};

// REQUIRES: num_prompts >= 1, input_len >= max(1, prefix_len), request_rate > 0, and a token that
// is not excluded.
std::vector<PlannedRequest> PlanLoad(const LoadPlanOptions& options);

}  // namespace retroinfer::client
