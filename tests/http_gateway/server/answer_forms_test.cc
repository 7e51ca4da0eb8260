// Whole conversations over /v1/responses and /v1/messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/http_gateway/event_stream.h"
#include "tests/http_gateway/gateway_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::EventsOf;
using test_support::HttpAnswer;
using test_support::HttpClient;
using test_support::NamesOf;
using test_support::StreamEvent;
using ::testing::HasSubstr;

// Shows the form of calls, and each message with what templates see of it.
constexpr char kTemplate[] =
    "{% if tools %}<tool_call></tool_call>{% for t in tools %}{{ t.function.name }} "
    "{% endfor %}{% endif %}{% for m in messages %}{{ m.role }}({{ m.reasoning_content or '' }}|"
    "{{ m.content or '' }}|{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}|{{ m.tool_call_id or '' }}){% endfor %}";
constexpr char kCall[] =
    "<think>hm</think>Wait.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";

// A worker whose engine says `text` as its only token.
class AnswerFormsTest : public ::testing::Test {
 protected:
  void Serve(const std::string& text, GatewayOptions gateway = {}) {
    GatewayHarness::Settings settings;
    settings.worker.serve = false;
    settings.worker.engine.token_text = text;
    settings.worker.engine.limits = {100'000, {{100'000, 100'000, 100'000}}, 8, 64};
    settings.gateway = std::move(gateway);
    harness_ = std::make_unique<GatewayHarness>(settings);
    tokenizer_ = MakeByteTokenizer({.chat_template = std::string(kTemplate)});
    template_ = std::make_unique<ChatTemplate>(ChatTemplate::Create(*tokenizer_));
    harness_->worker().model().tokenizer = tokenizer_.get();
    harness_->worker().model().chat_template = template_.get();
    harness_->worker().Serve();
  }
  std::string Prompt() const {
    const std::vector<int32_t> prompt = harness_->worker().engine().last_request().prompt;
    return {prompt.begin(), prompt.end()};
  }
  Json Post(const std::string& path, const Json& body) {
    const HttpAnswer answer = harness_->Post(path, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<GatewayHarness> harness_;
};

TEST_F(AnswerFormsTest, AResponseGoesOnWithItsOwnItems) {
  Serve(kCall);
  Json body = Json::parse(R"({"model": "fake-model", "instructions": "be kind", "store": false,
      "input": [{"role": "user", "content": [{"type": "input_text", "text": "one?"}]}],
      "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
      "max_output_tokens": 1})");
  const Json first = Post("/v1/responses", body);
  EXPECT_EQ(first["status"], "incomplete") << first;  // the fake engine ends by length alone
  EXPECT_TRUE(first["id"].get<std::string>().starts_with("resp_"));
  ASSERT_EQ(first["output"].size(), 3U) << first;
  EXPECT_EQ(first["output"][2]["name"], "add");
  EXPECT_EQ(Prompt(), "<tool_call></tool_call>add system(|be kind||)user(|one?||)");

  for (const Json& item : first["output"]) body["input"].push_back(item);
  body["input"].push_back({{"type", "function_call_output"},
                           {"call_id", first["output"][2]["call_id"]},
                           {"output", "3"}});
  Post("/v1/responses", body);
  EXPECT_THAT(Prompt(),
              HasSubstr(absl::StrCat("user(|one?||)assistant(hm|Wait.|add{\"a\": 1}|)tool(|3||",
                                     first["output"][2]["call_id"].get<std::string>(), ")")));
}

TEST_F(AnswerFormsTest, AResponseIsStreamedInTypedEvents) {
  Serve("Hi.");
  const HttpAnswer answer =
      harness_->Post("/v1/responses", R"({"input": "x", "stream": true, "max_output_tokens": 1})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<StreamEvent> events = EventsOf(answer.body);
  EXPECT_EQ(NamesOf(events),
            "response.created response.in_progress response.output_item.added "
            "response.content_part.added response.output_text.delta response.output_text.done "
            "response.content_part.done response.output_item.done response.incomplete ");
  const Json& last = events.back().data["response"];
  EXPECT_EQ(last["output"][0]["content"][0]["text"], "Hi.");
  EXPECT_EQ(last["usage"]["output_tokens"], 1);
  EXPECT_EQ(last["usage"]["input_tokens"], std::string("user(|x||)").size());
}

TEST_F(AnswerFormsTest, StoredResponsesAreNotFound) {
  Serve("x");
  const HttpAnswer found = harness_->Get("/v1/responses/resp_1");
  EXPECT_EQ(found.status, 404);
  EXPECT_THAT(found.body, HasSubstr("send the whole input"));
  EXPECT_EQ(Json::parse(found.body)["error"]["code"], "response_not_found");
  HttpClient client(harness_->port());
  client.Send("DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.Read().status, 404);
  const HttpAnswer previous =
      harness_->Post("/v1/responses", R"({"input": "x", "previous_response_id": "resp_1"})");
  EXPECT_EQ(previous.status, 400);
  EXPECT_EQ(Json::parse(previous.body)["error"]["param"], "previous_response_id");
}

TEST_F(AnswerFormsTest, AMessageGoesOnWithItsOwnBlocks) {
  Serve(kCall);
  Json body = Json::parse(R"({"model": "fake-model", "max_tokens": 1, "system": "be kind",
      "messages": [{"role": "user", "content": "one?"}],
      "tools": [{"name": "add", "input_schema": {"type": "object"}}]})");
  const Json first = Post("/v1/messages", body);
  EXPECT_EQ(first["type"], "message");
  EXPECT_TRUE(first["id"].get<std::string>().starts_with("msg_"));
  ASSERT_EQ(first["content"].size(), 3U) << first;
  EXPECT_EQ(first["content"][2]["input"]["a"], 1);
  EXPECT_EQ(Prompt(), "<tool_call></tool_call>add system(|be kind||)user(|one?||)");
  EXPECT_EQ(first["usage"]["input_tokens"], Prompt().size());

  body["messages"].push_back({{"role", "assistant"}, {"content", first["content"]}});
  const Json result = {{"type", "tool_result"},
                       {"tool_use_id", first["content"][2]["id"]},
                       {"content", Json::array({{{"type", "text"}, {"text", "3"}}})}};
  body["messages"].push_back({{"role", "user"}, {"content", Json::array({result})}});
  Post("/v1/messages", body);
  EXPECT_THAT(Prompt(),
              HasSubstr(absl::StrCat("user(|one?||)assistant(hm|Wait.|add{\"a\": 1}|)tool(|3||",
                                     first["content"][2]["id"].get<std::string>(), ")")));
  body.erase("max_tokens");
  const Json count = Post("/v1/messages/count_tokens", body);
  EXPECT_EQ(count["input_tokens"], Prompt().size());
}

TEST_F(AnswerFormsTest, AMessageIsStreamedInBlocks) {
  Serve(kCall);
  const HttpAnswer answer =
      harness_->Post("/v1/messages?beta=true",
                     R"({"messages": [{"role": "user", "content": "x"}], "stream": true,
          "tools": [{"name": "add", "input_schema": {}}], "max_tokens": 1})",
                     "anthropic-version: 2023-06-01\r\nanthropic-beta: a,b\r\n");
  EXPECT_EQ(answer.status, 200) << answer.body;
  const std::vector<StreamEvent> events = EventsOf(answer.body);
  EXPECT_EQ(NamesOf(events),
            "message_start content_block_start content_block_delta+ content_block_stop "
            "content_block_start content_block_delta content_block_stop "
            "content_block_start content_block_delta content_block_stop "
            "message_delta message_stop ");
  EXPECT_EQ(events.front().data["message"]["usage"]["input_tokens"], Prompt().size());
  EXPECT_EQ(events[events.size() - 2].data["usage"]["output_tokens"], 1);
}

TEST_F(AnswerFormsTest, ErrorsHaveTheFormOfTheirClients) {
  Serve("x", {.generations_max = 1, .model_names = {"claude-x"}});
  const auto error = [](const HttpAnswer& answer) {
    const Json json = Json::parse(answer.body);
    EXPECT_EQ(json["type"], "error") << answer.body;
    return absl::StrCat(answer.status, " ", json["error"]["type"].get<std::string>());
  };
  const std::string user = R"("messages": [{"role": "user", "content": "x"}])";
  const auto post = [&](const std::string& members) {
    return harness_->Post("/v1/messages", absl::StrCat("{", user, members, "}"));
  };
  EXPECT_EQ(error(harness_->Post("/v1/messages", "{")), "400 invalid_request_error");
  EXPECT_EQ(error(post(R"(, "model": "claude-y")")), "404 not_found_error");
  EXPECT_EQ(error(harness_->Post("/v1/messages/batches", "{}")), "404 not_found_error");
  EXPECT_EQ(error(harness_->Get("/v1/messages")), "405 invalid_request_error");
  const HttpAnswer long_answer = post(R"(, "max_tokens": 100000)");
  EXPECT_EQ(error(long_answer), "400 invalid_request_error");
  EXPECT_THAT(long_answer.body, HasSubstr("exceed context limit: 10 + 100000 > 100000"));
  EXPECT_EQ(Json::parse(post(R"(, "model": "claude-x", "max_tokens": 1)").body)["model"],
            "claude-x");
  harness_->worker().engine().Hold(true);
  HttpClient first(harness_->port());
  first.Post("/v1/messages", absl::StrCat("{", user, R"(, "max_tokens": 1})"));
  ASSERT_TRUE(harness_->worker().engine().AwaitLive(1));
  EXPECT_EQ(error(post("")), "429 rate_limit_error");
}

TEST_F(AnswerFormsTest, AFailureOfAStreamIsAnEventOfItsForm) {
  GatewayHarness::Settings settings;
  settings.worker.engine.fail_after = 1;
  GatewayHarness harness(settings);
  const HttpAnswer message = harness.Post(
      "/v1/messages",
      R"({"messages": [{"role": "user", "content": "x"}], "stream": true, "max_tokens": 9})");
  const StreamEvent error = EventsOf(message.body).back();
  EXPECT_EQ(error.name, "error");
  EXPECT_EQ(error.data["error"]["type"], "api_error");
  const HttpAnswer response =
      harness.Post("/v1/responses", R"({"input": "x", "stream": true, "max_output_tokens": 9})");
  const StreamEvent failed = EventsOf(response.body).back();
  EXPECT_EQ(failed.name, "response.failed");
  EXPECT_EQ(failed.data["response"]["error"]["code"], "internal_error");
}

TEST_F(AnswerFormsTest, ABillingHeaderOfASystemBlockMakesNoOtherPrompt) {
  Serve("x");
  const auto prompt = [this](const std::string& header) {
    Post("/v1/messages",
         Json::parse(absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}],
            "max_tokens": 1, "system": [{"type": "text", "text": "x-anthropic-billing-header: )",
                                  header, R"("}, {"type": "text", "text": "be kind"}]})")));
    return Prompt();
  };
  EXPECT_EQ(prompt("cch=1"), "system(|be kind||)user(|x||)");
  EXPECT_EQ(prompt("cch=2"), "system(|be kind||)user(|x||)");
}

}  // namespace
}  // namespace retroinfer::gateway
