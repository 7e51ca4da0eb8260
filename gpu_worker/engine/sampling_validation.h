// Checks the parts of a GenerationRequest that come from outside.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/engine/generation.h"

namespace retroinfer {

inline constexpr int32_t kMaxStopStrings = 16;
inline constexpr int32_t kMaxStopBytes = 256;  // of one stop string
inline constexpr int32_t kMaxStopTokens = 16;
inline constexpr int32_t kMaxLogprobs = 20;
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr size_t kMaxLogitBiases = 1024;
inline constexpr float kMaxLogitBias = 100.0f;

// Returns INVALID_ARGUMENT (reason INVALID_SAMPLING) naming the first field that is outside the
// range that SamplingParams and generation.proto give for it; NaN is outside of every range.
// `least_tokens`: of max_tokens.
absl::Status ValidateSampling(const SamplingParams& sampling, int32_t vocab_size,
                              int32_t least_tokens = 1);

// Returns INVALID_ARGUMENT (reason INVALID_ATTENTION) for a ratio that is NaN or outside [0, 1].
absl::Status ValidateAttention(const AttentionSettings& attention);

// All of the above, and the prompt: INVALID_ARGUMENT with reason EMPTY_PROMPT, TOKEN_OUT_OF_RANGE,
// or CONTEXT_TOO_LONG if prompt + max_tokens is over `max_model_len`. A request that measures
// (IsScoring) may have no max_tokens; INVALID_REQUEST if its continuations are not as promised.
absl::Status ValidateRequest(const GenerationRequest& request, int32_t vocab_size,
                             int64_t max_model_len);

}  // namespace retroinfer
