// The body of POST /score.
#pragma once

#include "absl/status/statusor.h"
#include "http_gateway/api/sampling_fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

struct ScoreCall {
  static constexpr size_t kContinuationsMax = 64;

  RequestOptions options;
  generation::v1::ScoreRequest request;
};

// {"prompt": text or token ids, or "messages" as for chat; "continuations": a list of texts or
// lists of token ids; "logprobs", "prompt_logprobs": how many alternatives of each token} and what
// this server adds to all requests (policy, cache_salt, priority, ...).
//
// Returns: INVALID_ARGUMENT with the parameter; what is not offered (stream) is refused by name.
absl::StatusOr<ScoreCall> ReadScoreRequest(const Json& body, IgnoredNames* ignored = nullptr);

}  // namespace retroinfer::gateway
