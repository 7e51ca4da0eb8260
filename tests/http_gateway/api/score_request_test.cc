#include "http_gateway/api/score_request.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

absl::StatusOr<ScoreCall> Read(const std::string& body) {
  return ReadScoreRequest(*ParseStrictJson(body));
}

// The parameter that is refused, and why.
std::string Refused(const std::string& body) {
  const absl::StatusOr<ScoreCall> call = Read(body);
  if (call.ok()) return "taken";
  common::ErrorReason reason = common::ReasonOf(call.status());
  return reason.metadata["param"] + " " + reason.reason;
}

TEST(ScoreRequest, ReadsAllThatItOffers) {
  const auto call = Read(R"({"model": "m", "prompt": "a b", "continuations": [" c", [1, 2]],
                             "logprobs": 3, "prompt_logprobs": 0, "policy": "full",
                             "retrieval_ratio": 0.5, "cache_salt": "s", "priority": -2,
                             "timeout": 1.5, "context": "book", "add_special_tokens": false})");
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::ScoreRequest& request = call->request;
  EXPECT_EQ(call->options.model, "m");
  EXPECT_EQ(call->options.context, "book");
  EXPECT_EQ(request.text(), "a b");
  ASSERT_EQ(request.continuations_size(), 2);
  EXPECT_EQ(request.continuations(0).text(), " c");
  EXPECT_EQ(request.continuations(1).token_ids().ids(1), 2);
  EXPECT_EQ(request.logprobs(), 3);
  EXPECT_TRUE(request.has_prompt_logprobs());
  EXPECT_EQ(request.attention().policy(), v1::ATTENTION_POLICY_FULL);
  EXPECT_EQ(request.attention().retrieval_ratio(), 0.5);
  EXPECT_EQ(request.cache_salt(), "s");
  EXPECT_EQ(request.priority(), -2);
  EXPECT_EQ(request.timeout().nanos(), 500'000'000);
  EXPECT_FALSE(request.add_special_tokens());
}

TEST(ScoreRequest, TheContextMayBeIdsOrMessages) {
  EXPECT_EQ(Read(R"({"prompt": [5, 6], "continuations": ["x"]})")->request.token_ids().ids(0), 5);
  EXPECT_EQ(Read(R"({"messages": [{"role": "user", "content": "q"}], "continuations": ["x"]})")
                ->request.messages()
                .messages_size(),
            1);
  EXPECT_TRUE(Read(R"({"prompt": "a", "prompt_logprobs": 1})").ok());
}

TEST(ScoreRequest, RefusesWithTheParameter) {
  EXPECT_EQ(Refused("[]"), "the body INVALID_TYPE");
  EXPECT_EQ(Refused(R"({"continuations": ["x"]})"), "prompt MISSING_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": "a"})"), "continuations MISSING_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": []})"), "continuations MISSING_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": 1, "continuations": ["x"]})"), "prompt INVALID_TYPE");
  EXPECT_EQ(Refused(R"({"prompt": [-1], "continuations": ["x"]})"), "prompt INVALID_VALUE");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": "x"})"), "continuations INVALID_TYPE");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": ["x", 1.5]})"),
            "continuations[1] INVALID_TYPE");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": [[1.5]]})"),
            "continuations[0] INVALID_VALUE");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": ["x"], "logprobs": 21})"),
            "logprobs INVALID_VALUE");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": ["x"], "stream": true})"),
            "stream UNSUPPORTED_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": ["x"], "tenant": "t"})"),
            "tenant UNSUPPORTED_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": ["x"], "return_progress": true})"),
            "return_progress UNSUPPORTED_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": "a", "continuations": ["x"], "max_tokens": 5})"),
            "max_tokens UNKNOWN_PARAMETER");
  EXPECT_EQ(Refused(R"({"prompt": "a", "messages": [], "continuations": ["x"]})"),
            "prompt INVALID_VALUE");
  std::string many = R"({"prompt": "a", "continuations": [")"
                     "x\"";
  for (int i = 0; i < 64; ++i) many += ", \"x\"";
  EXPECT_EQ(Refused(many + "]}"), "continuations INVALID_VALUE");
}

}  // namespace
}  // namespace retroinfer::gateway
