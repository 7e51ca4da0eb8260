#include "http_gateway/server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_split.h"
#include "common/status/error_reason.h"
#include "tests/http_gateway/gateway_harness.h"
#include "tests/http_gateway/http_harness.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using test_support::HttpClient;
using ::testing::HasSubstr;

constexpr char kStream[] = R"("stream": true)";

// The data of each event; comments are left out.
std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  for (const absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    if (event.substr(0, 6) == "data: ") events.emplace_back(event.substr(6));
  }
  return events;
}

// Token i of the fake engine is the last one of the prompt + 1 + i, its text the number and a
// space.
TEST(Generation, Completes) {
  GatewayHarness harness;
  const HttpAnswer answer =
      harness.Post("/v1/completions", R"({"model": "fake-model", "prompt": "a", "max_tokens": 3})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = Json::parse(answer.body);
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "fake-model");
  EXPECT_EQ(json["choices"][0]["text"], "98 99 100 ");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 1);
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
}

TEST(Generation, CompletesListsOfPromptsTimesN) {
  GatewayHarness harness;
  const HttpAnswer answer = harness.Post(
      "/v1/completions", R"({"prompt": ["a", [1, 2]], "n": 2, "max_tokens": 1, "echo": true})");
  const Json json = Json::parse(answer.body);
  ASSERT_EQ(json["choices"].size(), 4U) << answer.body;
  EXPECT_EQ(json["choices"][0]["text"], "a98 ");
  EXPECT_EQ(json["choices"][1]["text"], "a98 ");
  EXPECT_EQ(json["choices"][2]["text"],
            "\x01\x02"
            "3 ");
  EXPECT_EQ(json["choices"][3]["index"], 3);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
}

TEST(Generation, StreamsAsClientsExpect) {
  GatewayHarness harness;
  const HttpAnswer answer = harness.Post(
      "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": true,
          "stream_options": {"include_usage": true}})");
  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.headers.at("cache-control"), "no-cache");
  const std::vector<std::string> events = EventsOf(answer.body);
  ASSERT_GE(events.size(), 4U);
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (size_t i = 1; i + 3 < events.size(); ++i) {
    text += Json::parse(events[i])["choices"][0]["delta"]["content"];
  }
  EXPECT_EQ(text, "98 99 ");
  const Json last = Json::parse(events[events.size() - 3]);
  EXPECT_EQ(last["object"], "chat.completion.chunk");
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(last["usage"].is_null());
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 3);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Generation, ShowsProgressOnRequest) {
  GatewayHarness harness;
  const std::string body = harness
                               .Post("/v1/completions",
                                     R"({"prompt": "abc", "max_tokens": 1, "stream": true,
                                            "return_progress": true})")
                               .body;
  const Json first = Json::parse(EventsOf(body)[0]);
  EXPECT_EQ(first["progress"]["total_tokens"], 3);
  EXPECT_TRUE(first["choices"].empty());
}

TEST(Generation, LogprobsHaveTheTokensBytes) {
  GatewayHarness harness;
  const Json chat =
      Json::parse(harness
                      .Post("/v1/chat/completions",
                            R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1,
                    "logprobs": true, "top_logprobs": 2})")
                      .body);
  const Json entry = chat["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], "b");
  EXPECT_EQ(entry["bytes"].dump(), "[98]");
  EXPECT_EQ(entry["top_logprobs"][1]["token"], "c");
  const Json completion = Json::parse(
      harness.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "logprobs": 1})").body);
  EXPECT_EQ(completion["choices"][0]["logprobs"]["tokens"][0], "b");
}

TEST(Generation, WhatTheWorkerRefusesHasItsStatusAlsoOfAStream) {
  GatewayHarness harness;
  for (const char* stream : {"", R"(, "stream": true)"}) {
    const HttpAnswer answer = harness.Post(
        "/v1/completions", absl::StrCat(R"({"prompt": "a", "temperature": 200)", stream, "}"));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(Json::parse(answer.body)["error"]["code"], "invalid_sampling");
    const HttpAnswer too_long =
        harness.Post("/v1/completions",
                     absl::StrCat(R"({"prompt": ")", std::string(5000, 'a'), "\"", stream, "}"));
    EXPECT_EQ(Json::parse(too_long.body)["error"]["code"], "context_length_exceeded");
  }
  const HttpAnswer model =
      harness.Post("/v1/completions", R"({"model": "other", "prompt": "a", "stream": true})");
  EXPECT_EQ(model.status, 404);
}

// The prompt that the engine gets of a chat as Claude Code begins it.
std::vector<int32_t> PromptOf(GatewayHarness& harness, const std::string& header, bool in_parts) {
  const std::string line = absl::StrCat("x-anthropic-billing-header: cc_version=2.1; cch=", header);
  const std::string content = in_parts
                                  ? absl::StrCat(R"([{"type": "text", "text": ")", line,
                                                 R"("}, {"type": "text", "text": "Be kind."}])")
                                  : absl::StrCat("\"", line, R"(\nBe kind.")");
  const HttpAnswer answer =
      harness.Post("/v1/chat/completions",
                   absl::StrCat(R"({"messages": [{"role": "system", "content": )", content,
                                R"(}, {"role": "user", "content": "hi"}], "max_tokens": 1})"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  return harness.worker().engine().last_request().prompt;
}

TEST(Generation, ABillingHeaderThatChangesMakesNoOtherPrompt) {
  GatewayHarness harness;
  const std::vector<int32_t> prompt = PromptOf(harness, "1a2b3;", false);
  EXPECT_EQ(PromptOf(harness, "77777; more", false), prompt);
  EXPECT_EQ(PromptOf(harness, "1a2b3;", true), prompt);
  const std::string text = "Be kind.\nhi";
  EXPECT_EQ(prompt, std::vector<int32_t>(text.begin(), text.end()));
  GatewayHarness keeping({.gateway = {.keep_billing_header = true}});
  EXPECT_NE(PromptOf(keeping, "1", false), PromptOf(keeping, "2", false));
}

TEST(Generation, UsageSaysCachedTokensInEachKindOfAnswer) {
  GatewayHarness harness;
  const char kPrompt[] = R"("prompt": "ab")";
  const char kMessages[] = R"("messages": [{"role": "user", "content": "ab"}])";
  for (const auto& [path, input] :
       {std::pair("/v1/completions", kPrompt), std::pair("/v1/chat/completions", kMessages)}) {
    for (const char* const more :
         {R"("max_tokens": 1)",
          R"("max_tokens": 1, "stream": true, "stream_options": {"include_usage": true})"}) {
      const HttpAnswer answer = harness.Post(path, absl::StrCat("{", input, ", ", more, "}"));
      const std::vector<std::string> events = EventsOf(answer.body);
      const Json last = Json::parse(events.empty() ? answer.body : events.at(events.size() - 2));
      EXPECT_EQ(last["usage"]["prompt_tokens"], 2) << answer.body;
      EXPECT_TRUE(last["usage"]["prompt_tokens_details"]["cached_tokens"].is_number_integer())
          << answer.body;
    }
  }
}

TEST(Generation, AFailureOfAStreamThatHasBegunIsAnEvent) {
  GatewayHarness::Settings settings;
  settings.worker.engine.fail_after = 2;
  GatewayHarness harness(settings);
  const HttpAnswer stream = harness.Post(
      "/v1/completions", absl::StrCat(R"({"prompt": "a", "max_tokens": 9, )", kStream, "}"));
  EXPECT_EQ(stream.status, 200);
  const std::vector<std::string> events = EventsOf(stream.body);
  EXPECT_THAT(events.back(), HasSubstr("the fake engine failed"));
  EXPECT_EQ(Json::parse(events.back())["error"]["code"], "internal_error");
  const HttpAnswer whole = harness.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 9})");
  EXPECT_EQ(whole.status, 500);
}

TEST(Generation, RequestsBehindAStreamWaitForItsEnd) {
  GatewayHarness harness;
  harness.worker().engine().Hold(true);
  HttpClient client(harness.port());
  client.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 50, "stream": true})");
  client.Post("/score", R"({"prompt": "ab", "continuations": ["c"]})");
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  harness.worker().engine().Hold(false);
  HttpAnswer stream = client.ReadHead();
  EXPECT_FALSE(client.ReadChunk().empty());
  client.Get("/health");
  client.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 2, "stream": true})");
  EXPECT_EQ(EventsOf(client.ReadBody(stream)).back(), "[DONE]");
  const HttpAnswer score = client.Read();
  EXPECT_EQ(score.status, 200);
  EXPECT_THAT(score.body, HasSubstr("\"object\":\"score\""));
  EXPECT_THAT(client.Read().body, HasSubstr("status"));
  EXPECT_EQ(EventsOf(client.Read().body).back(), "[DONE]");
}

TEST(Generation, AClientThatGoesAwayEndsItsRequest) {
  GatewayHarness harness;
  harness.worker().engine().Hold(true);
  for (const char* members : {R"("stream": true)", R"("n": 2)"}) {
    {
      HttpClient client(harness.port());
      client.Post("/v1/completions",
                  absl::StrCat(R"({"prompt": "a", "max_tokens": 1000, )", members, "}"));
      EXPECT_TRUE(Await([&] { return harness.worker().engine().num_live() > 0; }));
    }
    EXPECT_TRUE(harness.worker().engine().AwaitLive(0));
  }
}

TEST(Generation, ASilentStreamGetsComments) {
  GatewayHarness::Settings settings;
  settings.gateway.keepalive = absl::Milliseconds(100);
  GatewayHarness harness(settings);
  harness.worker().engine().Hold(true);
  HttpClient client(harness.port());
  client.Post(
      "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "a"}], "stream": true, "max_tokens": 1})");
  EXPECT_EQ(client.ReadHead().status, 200);
  EXPECT_THAT(client.ReadChunk(), HasSubstr("\"role\":\"assistant\""));
  EXPECT_EQ(client.ReadChunk(), ": keep-alive\n\n");
  EXPECT_EQ(client.ReadChunk(), ": keep-alive\n\n");
  harness.worker().engine().Hold(false);
  EXPECT_NE(client.ReadUntil("[DONE]"), "");
}

TEST(Generation, TakesNoMoreThanItIsAllowed) {
  GatewayHarness::Settings settings;
  settings.gateway.generations_max = 1;
  GatewayHarness harness(settings);
  harness.worker().engine().Hold(true);
  HttpClient first(harness.port());
  first.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})");
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  const HttpAnswer second = harness.Post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.headers.at("retry-after"), "1");
  harness.worker().engine().Hold(false);
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(harness.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
}

TEST(Generation, AFullQueueIs429) {
  GatewayHarness::Settings settings;
  settings.worker.engine.limits.max_live_requests = 1;
  GatewayHarness harness(settings);
  harness.worker().engine().Hold(true);
  HttpClient first(harness.port());
  first.Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})");
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  const HttpAnswer second = harness.Post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(Json::parse(second.body)["error"]["code"], "queue_full");
}

// A worker whose template shows a form of calls, and whose engine says `text` as its only token.
class ToolsTest : public ::testing::Test {
 protected:
  HttpAnswer Ask(const std::string& text, const std::string& members,
                 const std::string& tools_text = "<tool_call></tool_call>") {
    settings_.worker.serve = false;
    settings_.worker.engine.token_text = text;
    harness_ = std::make_unique<GatewayHarness>(settings_);
    tokenizer_ = MakeByteTokenizer(
        {.chat_template = "{% if tools %}" + tools_text +
                          "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"});
    template_ = std::make_unique<ChatTemplate>(ChatTemplate::Create(*tokenizer_));
    harness_->worker().model().tokenizer = tokenizer_.get();
    harness_->worker().model().chat_template = template_.get();
    harness_->worker().model().constraints = std::make_shared<constraint::ConstraintCompiler>(
        constraint::TokenVocabulary::Create(*tokenizer_, {}, tokenizer_->vocab_size()));
    harness_->worker().Serve();
    return harness_->Post(
        "/v1/chat/completions",
        absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
             "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}])",
                     members, "}"));
  }

  GatewayHarness::Settings settings_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<GatewayHarness> harness_;
};

TEST_F(ToolsTest, CallsAreParsedBack) {
  const HttpAnswer answer =
      Ask("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>", "");
  const Json choice = Json::parse(answer.body)["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}")
      << answer.body;
}

// The whole of what a stream's deltas say of their first call.
Json CallOf(const std::string& body) {
  Json call = Json::object({{"arguments", ""}});
  for (const std::string& event : EventsOf(body)) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    if (choice["finish_reason"].is_string()) call["finish_reason"] = choice["finish_reason"];
    if (!choice["delta"].contains("tool_calls")) continue;
    const Json delta = choice["delta"]["tool_calls"][0];
    if (delta.contains("id")) call["id"] = delta["id"];
    if (delta["function"].contains("name")) call["name"] = delta["function"]["name"];
    call["arguments"] =
        call["arguments"].get<std::string>() + delta["function"]["arguments"].get<std::string>();
  }
  return call;
}

TEST_F(ToolsTest, CallsAreStreamed) {
  const HttpAnswer answer =
      Ask("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":  1e400}}</tool_call>",
          R"(, "stream": true)");
  const Json call = CallOf(answer.body);
  EXPECT_EQ(call["name"], "add") << answer.body;
  EXPECT_EQ(call["arguments"], "{\"a\":  1e400}");
  EXPECT_EQ(call["id"].get<std::string>().size(), 29U);
}

TEST_F(ToolsTest, OneCallAtMostOnRequest) {
  const HttpAnswer answer = Ask("<tool_call>[{\"name\": \"add\"}, {\"name\": \"add\"}]</tool_call>",
                                R"(, "parallel_tool_calls": false)");
  const Json choice = Json::parse(answer.body)["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1U) << answer.body;
}

TEST_F(ToolsTest, ToolsOfAModelWithoutAKnownFormAreRefused) {
  const HttpAnswer answer = Ask("x", "", "some other form");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(Json::parse(answer.body)["error"]["param"], "tools");
  EXPECT_EQ(Ask("x", R"(, "tool_choice": "none")", "some other form").status, 200);
}

// The worker refuses a schema when the call begins. One that nobody has insisted on is let go.
TEST_F(ToolsTest, AConstraintThatIsRefusedIsRelaxedOnceOrIsTheFieldsFault) {
  settings_.worker.engine.fail_after = 0;
  settings_.worker.engine.failure =
      common::WithReason(absl::InvalidArgumentError("no such keyword"), "INVALID_CONSTRAINT");
  const HttpAnswer forced = Ask("x", R"(, "tool_choice": "required")");
  EXPECT_EQ(forced.status, 400) << forced.body;
  EXPECT_EQ(Json::parse(forced.body)["error"]["param"], "tool_choice");
  EXPECT_EQ(Json::parse(forced.body)["error"]["code"], "invalid_constraint");
  EXPECT_EQ(harness_->worker().engine().submitted(), 2);
  const HttpAnswer format = Ask("x", R"(, "response_format": {"type": "json_object"})");
  EXPECT_EQ(Json::parse(format.body)["error"]["param"], "response_format") << format.body;
  EXPECT_EQ(harness_->worker().engine().submitted(), 1);
  const HttpAnswer completion =
      harness_->Post("/v1/completions", R"({"prompt": "a", "guided_regex": "b"})");
  EXPECT_EQ(Json::parse(completion.body)["error"]["param"], "guided_regex") << completion.body;
}

TEST_F(ToolsTest, TheOptionSaysTheForm) {
  settings_.gateway.tool_form = ToolForm::kJson;
  const HttpAnswer answer =
      Ask("```json\n{\"name\": \"add\", \"arguments\": {}}\n```", "", "some other form");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(Json::parse(answer.body)["choices"][0]["message"]["tool_calls"].size(), 1U)
      << answer.body;
}

// As evaluation harnesses ask: the log-probability of a token of the fake engine is minus its id.
TEST(Generation, EchoWithLogprobsHasThoseOfThePrompt) {
  GatewayHarness harness;
  const Json answer = Json::parse(
      harness
          .Post("/v1/completions",
                R"({"prompt": ["ab", [99, 100, 101], [7]], "max_tokens": 1, "temperature": 0,
                    "echo": true, "logprobs": 1})")
          .body);
  ASSERT_EQ(answer["choices"].size(), 3U) << answer;
  const Json& text = answer["choices"][0];
  EXPECT_EQ(text["text"], "ab99 ");
  EXPECT_EQ(text["logprobs"]["tokens"], Json({"a", "b", "c"}));
  EXPECT_EQ(text["logprobs"]["token_logprobs"], Json({nullptr, -98.0, -0.25}));
  EXPECT_EQ(text["logprobs"]["text_offset"], Json({0, 1, 2}));
  EXPECT_TRUE(text["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(text["logprobs"]["top_logprobs"][1]["b"], 0.0);
  const Json& ids = answer["choices"][1];
  EXPECT_EQ(ids["logprobs"]["tokens"], Json({"c", "d", "e", "f"}));
  EXPECT_EQ(ids["logprobs"]["token_logprobs"], Json({nullptr, -100.0, -101.0, -0.25}));
  EXPECT_EQ(answer["choices"][2]["logprobs"]["token_logprobs"], Json({nullptr, -0.25}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
}

TEST(Generation, EchoOfNoTokensIsThePromptAlone) {
  GatewayHarness harness;
  const Json answer =
      Json::parse(harness
                      .Post("/v1/completions",
                            R"({"prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 2})")
                      .body);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "abc") << answer;
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -98.0, -99.0}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][2].size(), 2U);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  EXPECT_EQ(
      harness.Post("/v1/completions", R"({"prompt": "abc", "max_tokens": 0, "echo": true})").status,
      200);
  const HttpAnswer many = harness.Post(
      "/v1/completions", R"({"prompt": "abc", "max_tokens": 0, "echo": true, "n": 2})");
  EXPECT_EQ(many.status, 400) << many.body;
}

TEST(Generation, ContinuationsHaveThePromptsLogprobsInCommon) {
  GatewayHarness harness;
  const Json answer = Json::parse(
      harness
          .Post("/v1/completions",
                R"({"prompt": "ab", "max_tokens": 1, "n": 2, "echo": true, "logprobs": 0})")
          .body);
  for (const Json& choice : answer["choices"]) {
    EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -98.0, -0.25})) << answer;
  }
}

TEST(Generation, StreamsAPromptsLogprobsBeforeTheAnswer) {
  GatewayHarness harness;
  const std::string body =
      harness
          .Post("/v1/completions",
                R"({"prompt": "ab", "max_tokens": 2, "echo": true, "logprobs": 0,
                    "stream": true})")
          .body;
  std::string text;
  Json logprobs = Json::array(), offsets = Json::array();
  for (const std::string& event : EventsOf(body)) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    text += choice["text"];
    if (choice["logprobs"].is_null()) continue;
    for (const Json& value : choice["logprobs"]["token_logprobs"]) logprobs.push_back(value);
    for (const Json& value : choice["logprobs"]["text_offset"]) offsets.push_back(value);
  }
  EXPECT_EQ(text, "ab99 100 ");
  EXPECT_EQ(logprobs, Json({nullptr, -98.0, -0.25, -0.25}));
  EXPECT_EQ(offsets[1], 1);
}

}  // namespace
}  // namespace retroinfer::gateway
