// Loads of unlike requests: read from a file, or one of the named mixes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/bench/load_plan.h"

namespace retroinfer::client {

struct WorkloadRequest {
  absl::Duration arrival;     // since the start of the test
  int64_t input_len = 0;      // tokens of the prompt, the shared prefix included
  std::string prefix;         // requests that name the same one begin with the same tokens
  int64_t prefix_len = 0;     // how many
  int32_t output_len = 0;     // tokens to generate
  std::string request_class;  // requests of one class are reported together
  int32_t priority = 0;
  std::string tenant;  // GenerateRequest.tenant
};

// Parses JSON lines, one request each, in any order:
//   {"arrival": 1.5, "input_len": 900, "output_len": 64, "prefix": "manual", "prefix_len": 800,
//    "class": "chat", "priority": 0, "tenant": "a"}
// arrival in seconds; all but input_len and output_len may be left out.
//
// Returns: the requests by arrival; INVALID_ARGUMENT with the line and what is wrong with it.
absl::StatusOr<std::vector<WorkloadRequest>> ParseWorkload(std::string_view text);

// The mixes that MakeMix knows.
std::span<const std::string_view> MixNames();

struct MixOptions {
  int32_t num_prompts = 0;
  double request_rate = 0;      // requests a second, Poisson arrivals; infinite: all at once
  int64_t max_request_len = 0;  // tokens of prompt and output together; longer ones are cut
  uint64_t seed = 0;
};

// `chat`: short prompts. `documents`: questions about one of eight long texts. `agents`: turns
// behind one prefix of 100,352 tokens. `mixed`: of ten requests seven, two and one of these.
//
// REQUIRES: name is in MixNames(), num_prompts >= 1, request_rate > 0, max_request_len >= 2.
std::vector<WorkloadRequest> MakeMix(std::string_view name, const MixOptions& options);

// Draws the tokens of the prompts. REQUIRES: a token that is not excluded.
std::vector<PlannedRequest> PlanWorkload(std::span<const WorkloadRequest> requests,
                                         int32_t vocab_size,
                                         std::span<const int32_t> excluded_tokens, uint64_t seed);

}  // namespace retroinfer::client
