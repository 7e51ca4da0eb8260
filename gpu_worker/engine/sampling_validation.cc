#include "gpu_worker/engine/sampling_validation.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

absl::Status BadSampling(const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), "INVALID_SAMPLING");
}

enum class Low { kClosed, kOpen };  // whether the lower bound itself is allowed

absl::Status CheckRange(std::string_view name, float value, float min, float max,
                        Low low = Low::kClosed) {
  const bool above = low == Low::kClosed ? value >= min : value > min;
  if (above && value <= max) return absl::OkStatus();  // false for NaN
  return BadSampling(absl::StrCat(std::string(name), " is ", value, ", it must be in ",
                                  low == Low::kClosed ? "[" : "(", min, ", ", max, "]"));
}

absl::Status CheckStops(const SamplingParams& sampling, int32_t vocab_size) {
  if (sampling.stop.size() > kMaxStopStrings) {
    return BadSampling(absl::StrCat("stop has ", sampling.stop.size(), " strings, at most ",
                                    kMaxStopStrings, " are allowed"));
  }
  for (const std::string& stop : sampling.stop) {
    if (stop.empty()) return BadSampling("stop has an empty string");
    if (stop.size() > kMaxStopBytes) {
      return BadSampling(absl::StrCat("stop has a string of ", stop.size(), " bytes, at most ",
                                      kMaxStopBytes, " are allowed"));
    }
  }
  if (sampling.stop_token_ids.size() > kMaxStopTokens) {
    return BadSampling(absl::StrCat("stop_token_ids has ", sampling.stop_token_ids.size(),
                                    " ids, at most ", kMaxStopTokens, " are allowed"));
  }
  for (const int32_t token : sampling.stop_token_ids) {
    if (token < 0 || token >= vocab_size) {
      return BadSampling(
          absl::StrCat("stop_token_ids has ", token, ", ids must be in [0, ", vocab_size - 1, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogitBias(const SamplingParams& sampling, int32_t vocab_size) {
  if (sampling.logit_bias.size() > kMaxLogitBiases) {
    return BadSampling(absl::StrCat("logit_bias has ", sampling.logit_bias.size(),
                                    " entries, at most ", kMaxLogitBiases, " are allowed"));
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return BadSampling(absl::StrCat("logit_bias has token ", token, ", ids must be in [0, ",
                                      vocab_size - 1, "]"));
    }
    RETURN_IF_ERROR(CheckRange(absl::StrCat("logit_bias of token ", token), bias, -kMaxLogitBias,
                               kMaxLogitBias));
  }
  return absl::OkStatus();
}

absl::Status CheckLogprobs(std::string_view name, int32_t logprobs) {
  if (logprobs >= -1 && logprobs <= kMaxLogprobs) return absl::OkStatus();
  return BadSampling(
      absl::StrCat(std::string(name), " is ", logprobs, ", it must be in [0, ", kMaxLogprobs, "]"));
}

absl::Status CheckRatio(std::string_view name, double value) {
  if (value >= 0.0 && value <= 1.0) return absl::OkStatus();
  return common::WithReason(absl::InvalidArgumentError(absl::StrCat(
                                std::string(name), " is ", value, ", it must be in [0, 1]")),
                            "INVALID_ATTENTION");
}

absl::Status CheckUnseenMass(const AttentionSettings& attention) {
  const double mass = attention.max_unseen_mass;
  std::string problem;
  if (!(mass >= 0.0 && mass < 1.0)) {
    problem = absl::StrCat("max_unseen_mass is ", mass, ", it must be in [0, 1); 0: no limit");
  } else if (mass > 0 && attention.policy != PolicyKind::kWave) {
    problem = absl::StrCat("max_unseen_mass is ", mass, ", policy ",
                           std::string(PolicyName(attention.policy)),
                           " has no retrieval zone that could grow for it: leave it out, or use "
                           "policy wave");
  }
  if (problem.empty()) return absl::OkStatus();
  return common::WithReason(absl::InvalidArgumentError(problem), "INVALID_ATTENTION");
}

absl::Status CheckPrefill(const AttentionSettings& attention) {
  if (attention.prefill == PrefillKind::kIndexed &&
      (attention.tail_tokens < 1 || attention.tail_tokens > kMaxTailTokens)) {
    return common::WithReason(
        absl::InvalidArgumentError(absl::StrCat("tail_tokens is ", attention.tail_tokens,
                                                ", it must be in [1, ", kMaxTailTokens, "]")),
        "INVALID_ATTENTION");
  }
  if (attention.prefill != PrefillKind::kSparse || attention.policy != PolicyKind::kStreaming) {
    return absl::OkStatus();
  }
  return common::WithReason(
      absl::InvalidArgumentError("prefill is sparse, policy streaming reads prompts by its window: "
                                 "leave prefill out, or use policy wave or full"),
      "INVALID_ATTENTION");
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& sampling, int32_t vocab_size,
                              int32_t least_tokens) {
  RETURN_IF_ERROR(CheckRange("temperature", sampling.temperature, 0.0f, kMaxTemperature));
  RETURN_IF_ERROR(CheckRange("top_p", sampling.top_p, 0.0f, 1.0f, Low::kOpen));
  RETURN_IF_ERROR(CheckRange("min_p", sampling.min_p, 0.0f, 1.0f));
  RETURN_IF_ERROR(
      CheckRange("repetition_penalty", sampling.repetition_penalty, 0.0f, 10.0f, Low::kOpen));
  RETURN_IF_ERROR(CheckRange("frequency_penalty", sampling.frequency_penalty, -2.0f, 2.0f));
  RETURN_IF_ERROR(CheckRange("presence_penalty", sampling.presence_penalty, -2.0f, 2.0f));
  if (sampling.top_k < 0) {
    return BadSampling(absl::StrCat("top_k is ", sampling.top_k, ", it must be 0 (off) or more"));
  }
  if (sampling.max_tokens < least_tokens) {
    return BadSampling(absl::StrCat("max_tokens is ", sampling.max_tokens, ", it must be at least ",
                                    least_tokens));
  }
  if (sampling.min_tokens < 0 || sampling.min_tokens > sampling.max_tokens) {
    return BadSampling(absl::StrCat("min_tokens is ", sampling.min_tokens, ", it must be in [0, ",
                                    sampling.max_tokens, "] (max_tokens)"));
  }
  RETURN_IF_ERROR(CheckLogprobs("logprobs", sampling.num_logprobs));
  RETURN_IF_ERROR(CheckLogitBias(sampling, vocab_size));
  return CheckStops(sampling, vocab_size);
}

absl::Status ValidateAttention(const AttentionSettings& attention) {
  RETURN_IF_ERROR(CheckRatio("retrieval_ratio", attention.retrieval_ratio));
  RETURN_IF_ERROR(CheckRatio("estimation_ratio", attention.estimation_ratio));
  RETURN_IF_ERROR(CheckPrefill(attention));
  RETURN_IF_ERROR(CheckUnseenMass(attention));
  const int32_t window = attention.streaming_window;
  if (window >= kMinStreamingWindow && window <= kMaxStreamingWindow) return absl::OkStatus();
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat("streaming_window is ", window, ", it must be in [",
                                              kMinStreamingWindow, ", ", kMaxStreamingWindow, "]")),
      "INVALID_ATTENTION");
}

namespace {

absl::Status BadRequest(const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), "INVALID_REQUEST");
}

// `what`: as in "token 3 of the prompt".
absl::Status CheckTokens(std::string_view what, std::span<const int32_t> tokens,
                         int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return common::WithReason(absl::InvalidArgumentError(absl::StrCat(
                                  "token ", i, " of ", std::string(what), " is ", tokens[i],
                                  ", ids must be in [0, ", vocab_size - 1, "]")),
                              "TOKEN_OUT_OF_RANGE",
                              {{"position", absl::StrCat(i)},
                               {"token_id", absl::StrCat(tokens[i])},
                               {"vocab_size", absl::StrCat(vocab_size)}});
  }
  return absl::OkStatus();
}

// What is special about a request that measures.
absl::Status CheckScoring(const GenerationRequest& request, int32_t vocab_size) {
  size_t longest = 0;
  for (size_t i = 0; i < request.continuations.size(); ++i) {
    const std::vector<int32_t>& continuation = request.continuations[i];
    if (continuation.empty()) {
      return BadRequest(
          absl::StrCat("continuation ", i, " is empty, at least one token is needed"));
    }
    RETURN_IF_ERROR(CheckTokens(absl::StrCat("continuation ", i), continuation, vocab_size));
    longest = std::max(longest, continuation.size());
  }
  if (request.sampling.max_tokens != static_cast<int64_t>(longest)) {
    return BadRequest(absl::StrCat("max_tokens is ", request.sampling.max_tokens,
                                   ", the longest continuation has ", longest, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRequest(const GenerationRequest& request, int32_t vocab_size,
                             int64_t max_model_len) {
  if (request.prompt.empty()) {
    return common::WithReason(
        absl::InvalidArgumentError("the prompt is empty, at least one token is needed"),
        "EMPTY_PROMPT");
  }
  RETURN_IF_ERROR(CheckTokens("the prompt", request.prompt, vocab_size));
  RETURN_IF_ERROR(CheckLogprobs("prompt_logprobs", request.num_prompt_logprobs));
  if (IsScoring(request)) {
    RETURN_IF_ERROR(CheckScoring(request, vocab_size));
    RETURN_IF_ERROR(CheckLogprobs("logprobs", request.sampling.num_logprobs));
  } else {
    RETURN_IF_ERROR(ValidateSampling(request.sampling, vocab_size));
  }
  RETURN_IF_ERROR(ValidateAttention(request.attention));
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t needed = prompt_tokens + request.sampling.max_tokens;
  if (needed > max_model_len) {
    // Clients know the wording of OpenAI's API and shorten what they send.
    return common::WithReason(
        absl::InvalidArgumentError(
            absl::StrCat("The prompt is too long: this model's maximum context length is ",
                         max_model_len, " tokens. However, you requested ", needed, " tokens (",
                         prompt_tokens, " in the messages, ", request.sampling.max_tokens,
                         " in the completion). Shorten the prompt or lower max_tokens.")),
        "CONTEXT_TOO_LONG",
        {{"prompt_tokens", absl::StrCat(prompt_tokens)},
         {"max_tokens", absl::StrCat(request.sampling.max_tokens)},
         {"max_model_len", absl::StrCat(max_model_len)}});
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
