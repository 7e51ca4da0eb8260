// The JSON of what was measured of given tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "http_gateway/api/response_json.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Scores of neighbouring tokens, as lists with an entry for each.
class ScoredList {
 public:
  // `with_alternatives`: the list top_logprobs is there.
  explicit ScoredList(bool with_alternatives) : with_alternatives_(with_alternatives) {}

  // Returns: INTERNAL if these are not the tokens behind those that came before.
  absl::Status Append(const generation::v1::ScoredTokens& tokens);
  size_t bytes() const;
  // "sum_logprob":...,"all_greedy":...,"tokens":[...],... (no braces). What is not measured, a
  // prompt's first token, has null in all but its token.
  std::string Members() const;

 private:
  bool with_alternatives_;
  int64_t num_tokens_ = 0;
  double sum_ = 0;
  bool all_greedy_ = true;
  std::string tokens_, ids_, logprobs_, ranks_, greedy_, alternatives_;
};

Usage UsageOf(const generation::v1::ScoreFinished& finished);

}  // namespace retroinfer::gateway
