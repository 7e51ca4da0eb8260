#include "http_gateway/api/completion_request.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

absl::StatusOr<CompletionRequest> Read(const std::string& text) {
  return ReadCompletionRequest(Json::parse(text));
}

TEST(CompletionRequest, TakesEveryFormOfPrompt) {
  auto text =
      Read(R"({"prompt": "a", "max_tokens": 5, "logprobs": 2, "add_special_tokens": false})");
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_EQ(text->calls.size(), 1U);
  EXPECT_EQ(text->calls[0].text(), "a");
  EXPECT_EQ(text->calls[0].sampling().max_tokens(), 5);
  EXPECT_EQ(text->calls[0].sampling().logprobs(), 2);
  EXPECT_TRUE(text->calls[0].has_add_special_tokens());
  auto ids = Read(R"({"prompt": [1, 2, 3]})");
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->calls.size(), 1U);
  EXPECT_EQ(ids->calls[0].token_ids().ids_size(), 3);
  EXPECT_FALSE(ids->calls[0].sampling().has_max_tokens());
  auto lists = Read(R"({"prompt": ["a", [4, 5], "b"], "n": 2, "best_of": 2, "echo": true})");
  ASSERT_TRUE(lists.ok());
  ASSERT_EQ(lists->calls.size(), 3U);
  EXPECT_EQ(lists->calls[1].token_ids().ids(1), 5);
  EXPECT_EQ(lists->calls[2].text(), "b");
  EXPECT_TRUE(lists->echo);
}

TEST(CompletionRequest, EchoMeasuresThePrompt) {
  auto both = Read(R"({"prompt": "a", "echo": true, "logprobs": 3})");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->calls[0].sampling().prompt_logprobs(), 3);
  EXPECT_EQ(both->calls[0].sampling().logprobs(), 3);
  auto nothing = Read(R"({"prompt": "a", "echo": true, "max_tokens": 0})");
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE(nothing->calls[0].sampling().has_prompt_logprobs());
  EXPECT_FALSE(nothing->calls[0].sampling().has_logprobs());
  EXPECT_EQ(nothing->calls[0].sampling().max_tokens(), 0);
  auto text = Read(R"({"prompt": "a", "echo": true})");
  ASSERT_TRUE(text.ok());
  EXPECT_FALSE(text->calls[0].sampling().has_prompt_logprobs());
}

TEST(CompletionRequest, EachPromptHasTheConstraint) {
  auto request = Read(R"({"prompt": ["a", "b"], "guided_regex": "c+"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->options.constraint_param, "guided_regex");
  for (const auto& call : request->calls) EXPECT_EQ(call.constraint().regex(), "c+");
}

TEST(CompletionRequest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": 5})", "prompt"},
      {R"({"prompt": [1, "a"]})", "prompt"},
      {R"({"prompt": ["a", {}]})", "prompt[1]"},
      {R"({"prompt": [[-1]]})", "prompt[0]"},
      {R"({"prompt": "a", "suffix": "b"})", "suffix"},
      {R"({"prompt": "a", "best_of": 3})", "best_of"},
      {R"({"prompt": "a", "max_tokens": -1, "echo": true})", "max_tokens"},
      {R"({"prompt": "a", "echo": true, "logprobs": 1, "n": 2, "stream": true})", "n"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens"},
      {R"({"prompt": "a", "logprobs": 21})", "logprobs"},
      {R"({"prompt": "a", "logprobs": true})", "logprobs"},
      {R"({"prompt": "a", "response_format": {"type": "xml"}})", "response_format.type"},
      {R"({"prompt": "a", "messages": []})", "messages"},
  };
  for (const auto& [text, param] : cases) {
    const auto request = Read(text);
    ASSERT_FALSE(request.ok()) << text;
    EXPECT_EQ(common::ReasonOf(request.status()).metadata["param"], param) << request.status();
  }
  EXPECT_FALSE(Read("[]").ok());
}

TEST(CompletionRequest, BoundsPromptsTimesN) {
  Json prompts = Json::array();
  for (int i = 0; i < 128; ++i) prompts.push_back("a");
  EXPECT_TRUE(ReadCompletionRequest({{"prompt", prompts}}).ok());
  EXPECT_FALSE(ReadCompletionRequest({{"prompt", prompts}, {"n", 2}}).ok());
  prompts.push_back("a");
  EXPECT_FALSE(ReadCompletionRequest({{"prompt", prompts}}).ok());
}

}  // namespace
}  // namespace retroinfer::gateway
