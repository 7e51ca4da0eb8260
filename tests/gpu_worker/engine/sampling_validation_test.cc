#include "gpu_worker/engine/sampling_validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocabSize = 100;
constexpr int64_t kMaxModelLen = 64;

GenerationRequest ValidRequest() {
  GenerationRequest request;
  request.request_id = "r";
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 8;
  return request;
}

absl::Status Check(const std::function<void(GenerationRequest&)>& change) {
  GenerationRequest request = ValidRequest();
  change(request);
  return ValidateRequest(request, kVocabSize, kMaxModelLen);
}

void ExpectRefused(const std::string& reason, const std::string& message,
                   const std::function<void(GenerationRequest&)>& change) {
  const absl::Status status = Check(change);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_EQ(common::ReasonOf(status).reason, reason) << message;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(SamplingValidation, DefaultsAndTheEdgesOfRangesAreValid) {
  EXPECT_TRUE(Check([](GenerationRequest&) {}).ok());
  EXPECT_TRUE(Check([](GenerationRequest& r) { r.sampling.temperature = 0; }).ok());
  EXPECT_TRUE(Check([](GenerationRequest& r) { r.sampling.repetition_penalty = 10; }).ok());
  EXPECT_TRUE(Check([](GenerationRequest& r) { r.sampling.frequency_penalty = -2; }).ok());
  EXPECT_TRUE(Check([](GenerationRequest& r) { r.sampling.min_tokens = 8; }).ok());
  EXPECT_TRUE(Check([](GenerationRequest& r) { r.sampling.max_tokens = 61; }).ok());
  EXPECT_TRUE(Check([](GenerationRequest& r) { r.sampling.num_logprobs = 20; }).ok());
}

TEST(SamplingValidation, RefusesNanInfinityAndNegatives) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const char* kReason = "INVALID_SAMPLING";
  for (const float bad : {nan, inf, -inf, -0.5f}) {
    ExpectRefused(kReason, "temperature", [&](auto& r) { r.sampling.temperature = bad; });
    ExpectRefused(kReason, "top_p", [&](auto& r) { r.sampling.top_p = bad; });
    ExpectRefused(kReason, "min_p", [&](auto& r) { r.sampling.min_p = bad; });
    ExpectRefused(kReason, "repetition", [&](auto& r) { r.sampling.repetition_penalty = bad; });
  }
  for (const float bad : {nan, inf, -2.5f}) {
    ExpectRefused(kReason, "frequency", [&](auto& r) { r.sampling.frequency_penalty = bad; });
    ExpectRefused(kReason, "presence", [&](auto& r) { r.sampling.presence_penalty = bad; });
  }
  ExpectRefused(kReason, "top_p is 0", [](auto& r) { r.sampling.top_p = 0; });
  ExpectRefused(kReason, "top_k is -1", [](auto& r) { r.sampling.top_k = -1; });
}

TEST(SamplingValidation, RefusesTokenCountsOutsideTheirRanges) {
  const char* kReason = "INVALID_SAMPLING";
  ExpectRefused(kReason, "max_tokens is 0", [](auto& r) { r.sampling.max_tokens = 0; });
  ExpectRefused(kReason, "max_tokens is -5", [](auto& r) { r.sampling.max_tokens = -5; });
  ExpectRefused(kReason, "min_tokens is 9", [](auto& r) { r.sampling.min_tokens = 9; });
  ExpectRefused(kReason, "min_tokens is -1", [](auto& r) { r.sampling.min_tokens = -1; });
  ExpectRefused(kReason, "logprobs is 21", [](auto& r) { r.sampling.num_logprobs = 21; });
  ExpectRefused(kReason, "logprobs is -2", [](auto& r) { r.sampling.num_logprobs = -2; });
}

TEST(SamplingValidation, RefusesBadStops) {
  const char* kReason = "INVALID_SAMPLING";
  ExpectRefused(kReason, "17 strings", [](auto& r) { r.sampling.stop.assign(17, "x"); });
  ExpectRefused(kReason, "empty string", [](auto& r) { r.sampling.stop = {"a", ""}; });
  ExpectRefused(kReason, "257 bytes", [](auto& r) { r.sampling.stop = {std::string(257, 'x')}; });
  ExpectRefused(kReason, "17 ids", [](auto& r) { r.sampling.stop_token_ids.assign(17, 1); });
  ExpectRefused(kReason, "has 100", [](auto& r) { r.sampling.stop_token_ids = {100}; });
  ExpectRefused(kReason, "has -1", [](auto& r) { r.sampling.stop_token_ids = {-1}; });
}

TEST(SamplingValidation, ChecksLogitBiases) {
  const char* kReason = "INVALID_SAMPLING";
  EXPECT_TRUE(Check([](auto& r) { r.sampling.logit_bias = {{0, -100.0f}, {99, 100.0f}}; }).ok());
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 100.5f, -101.0f}) {
    ExpectRefused(kReason, "logit_bias of token 7",
                  [&](auto& r) { r.sampling.logit_bias[7] = bad; });
  }
  for (const int32_t bad : {-1, 100, std::numeric_limits<int32_t>::min()}) {
    ExpectRefused(kReason, "logit_bias has token",
                  [&](auto& r) { r.sampling.logit_bias[bad] = 1; });
  }
  ExpectRefused(kReason, "logit_bias has 1025 entries", [&](auto& r) {
    for (int32_t token = 0; token < 1025; ++token) r.sampling.logit_bias[token] = 1;
  });
}

TEST(SamplingValidation, RefusesBadRatios) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {nan, -0.1, 1.1}) {
    ExpectRefused("INVALID_ATTENTION", "retrieval_ratio",
                  [&](auto& r) { r.attention.retrieval_ratio = bad; });
    ExpectRefused("INVALID_ATTENTION", "estimation_ratio",
                  [&](auto& r) { r.attention.estimation_ratio = bad; });
  }
}

TEST(SamplingValidation, RefusesEmptyPromptsAndUnknownTokens) {
  ExpectRefused("EMPTY_PROMPT", "empty", [](auto& r) { r.prompt.clear(); });
  ExpectRefused("TOKEN_OUT_OF_RANGE", "token 1 of the prompt is 100", [](auto& r) {
    r.prompt = {99, 100};
  });
  ExpectRefused("TOKEN_OUT_OF_RANGE", "token 0 of the prompt is -1",
                [](auto& r) { r.prompt = {-1}; });
}

TEST(SamplingValidation, RefusesAContextLongerThanTheModelWithTheNumbers) {
  const absl::Status status = Check([](auto& r) { r.sampling.max_tokens = 62; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  // As litellm, LangChain and others look for.
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("prompt is too long: this model's maximum context length is 64 tokens. "
                        "However, you requested 65 tokens (3 in the messages, 62 in the "
                        "completion)"));
  const common::ErrorReason reason = common::ReasonOf(status);
  EXPECT_EQ(reason.reason, "CONTEXT_TOO_LONG");
  EXPECT_EQ(reason.metadata.at("prompt_tokens"), "3");
  EXPECT_EQ(reason.metadata.at("max_tokens"), "62");
  EXPECT_EQ(reason.metadata.at("max_model_len"), "64");
  // No overflow.
  EXPECT_EQ(common::ReasonOf(Check([](auto& r) {
              r.sampling.max_tokens = std::numeric_limits<int32_t>::max();
            })).reason,
            "CONTEXT_TOO_LONG");
}

}  // namespace
}  // namespace retroinfer
