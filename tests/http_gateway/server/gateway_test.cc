#include "http_gateway/server/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/http_gateway/gateway_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Gateway, NamesTheModel) {
  GatewayHarness harness;
  const HttpAnswer list = harness.Get("/v1/models");
  EXPECT_EQ(list.status, 200);
  EXPECT_EQ(list.headers.at("content-type"), "application/json");
  const Json json = Json::parse(list.body);
  EXPECT_EQ(json["object"], "list");
  EXPECT_EQ(json["data"][0]["id"], "fake-model");
  EXPECT_EQ(json["data"][0]["object"], "model");
  EXPECT_EQ(harness.Get("/v1/models/fake%2Dmodel").status, 200);
  const HttpAnswer other = harness.Get("/v1/models/another");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(Json::parse(other.body)["error"]["code"], "model_not_found");
}

TEST(Gateway, SaysWhetherTheWorkerServes) {
  GatewayHarness::Settings settings;
  settings.worker.serve = false;
  GatewayHarness harness(settings);
  EXPECT_EQ(harness.Get("/health").status, 503);
  const HttpAnswer loading = harness.Post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(loading.headers.count("retry-after"), 1U);
  harness.worker().Serve();
  EXPECT_TRUE(harness.BecomesHealthy());
  EXPECT_EQ(harness.Post("/v1/completions", R"({"prompt": "a"})").status, 200);
}

TEST(Gateway, AWorkerThatIsNotThereIsNotOurMistake) {
  GatewayHarness::Settings settings;
  settings.worker_address = "unix:/nothing/here.sock";
  GatewayHarness harness(settings);
  const HttpAnswer answer = harness.Post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(Json::parse(answer.body)["error"]["code"], "worker_unavailable");
  EXPECT_THAT(answer.body, Not(HasSubstr("/nothing")));
  EXPECT_EQ(harness.Get("/health").status, 503);
}

TEST(Gateway, KnowsItsPathsAndMethods) {
  GatewayHarness harness;
  EXPECT_EQ(harness.Get("/v1/modelsx").status, 404);
  EXPECT_EQ(harness.Get("/page/none.js").status, 404);
  EXPECT_EQ(harness.Post("/", "{}").status, 405);
  EXPECT_EQ(harness.Get("/v1/completions").status, 405);
  EXPECT_EQ(harness.Post("/v1/models", "{}").status, 405);
  test_support::HttpClient form(harness.port());
  form.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
      "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(form.Read().status, 415);
  test_support::HttpClient options(harness.port());
  options.Send("OPTIONS /v1/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://a\r\n\r\n");
  const HttpAnswer answer = options.Read();
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers.count("access-control-allow-origin"), 0U);
}

TEST(Gateway, NeedsTheKeyWhereThereIsOne) {
  GatewayHarness::Settings settings;
  settings.worker.server.keys = *common::KeyHolder::Open("of the worker", "");
  settings.worker_key = "of the worker";
  settings.gateway.keys = *common::KeyHolder::Open("of clients", "");
  GatewayHarness harness(settings);
  const std::string key = "Authorization: Bearer of clients\r\n";
  for (const char* path : {"/v1/models", "/metrics", "/stats", "/nothing", "/page/none.js"}) {
    const HttpAnswer answer = harness.Get(path);
    EXPECT_EQ(answer.status, 401) << path;
    EXPECT_EQ(Json::parse(answer.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(
      harness
          .Post("/v1/completions", R"({"prompt": "a"})", "Authorization: Bearer of the worker\r\n")
          .status,
      401);
  EXPECT_NE(harness.Get("/health").status, 401);
  EXPECT_EQ(harness.Get("/").status, 200);  // a browser has no key when it opens a page
  EXPECT_EQ(harness.Get("/stats", key).status, 200);
  EXPECT_EQ(harness.Get("/v1/models", key).status, 200);
  EXPECT_EQ(harness.Get("/metrics", key).status, 200);
  EXPECT_EQ(harness.Post("/v1/completions", R"({"prompt": "a"})", key).status, 200);
}

TEST(Gateway, PassesKeysOfTenantsOn) {
  const std::string path = absl::StrCat(testing::TempDir(), "/retroinfer-tenants-", getpid());
  std::ofstream(path) << "[[tenant]]\nname = 'a'\nkeys = ['key of a']\n"
                         "[[tenant]]\nname = 'b'\nkeys = ['key of b']\nhighest_priority = 5\n";
  GatewayHarness::Settings settings;
  settings.worker.server.keys = *common::KeyHolder::Open("", path);
  settings.gateway.keys = *common::KeyHolder::Open("", path);
  std::filesystem::remove(path);
  GatewayHarness harness(settings);
  const auto complete = [&](const std::string& key, const char* body) {
    return harness.Post("/v1/completions", body,
                        absl::StrCat("Authorization: Bearer ", key, "\r\n"));
  };
  EXPECT_EQ(complete("key of c", R"({"prompt": "a"})").status, 401);
  for (const char* name : {"a", "b", "a"}) {
    EXPECT_EQ(complete(absl::StrCat("key of ", name), R"({"prompt": "a"})").status, 200);
    EXPECT_EQ(harness.worker().engine().last_request().tenant->name, name);
  }
  const HttpAnswer urgent = complete("key of b", R"({"prompt": "a", "priority": 1})");
  EXPECT_EQ(urgent.status, 403);
  EXPECT_EQ(Json::parse(urgent.body)["error"]["code"], "priority_not_allowed");
  EXPECT_EQ(complete("key of a", R"({"prompt": "a", "tenant": "b"})").status, 403);
  EXPECT_EQ(harness.Get("/v1/models", "Authorization: Bearer key of b\r\n").status, 200);
}

TEST(Gateway, TellsOfItsOwnWrongKeyAsItsOwnFault) {
  GatewayHarness::Settings settings;
  settings.worker.server.keys = *common::KeyHolder::Open("right", "");
  settings.worker_key = "wrong";
  GatewayHarness harness(settings);
  EXPECT_EQ(harness.Get("/v1/models").status, 502);
}

TEST(Gateway, LetsPagesOfTheGivenOriginsIn) {
  GatewayHarness::Settings settings;
  settings.gateway.cors_origins = {"https://a.example"};
  GatewayHarness harness(settings);
  const auto origin_of = [&](const std::string& origin) {
    return harness.Get("/v1/models", "Origin: " + origin + "\r\n")
        .headers["access-control-allow-origin"];
  };
  EXPECT_EQ(origin_of("https://a.example"), "https://a.example");
  EXPECT_EQ(origin_of("https://b.example"), "");
  test_support::HttpClient client(harness.port());
  client.Send("OPTIONS /v1/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\n\r\n");
  const HttpAnswer preflight = client.Read();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.headers.at("access-control-allow-headers"), HasSubstr("Authorization"));
}

TEST(Gateway, NamesWhatItIgnoresOrRefusesItIfAskedTo) {
  constexpr char kChat[] =
      R"({"messages": [{"role": "user", "content": "a", "mood": 1}], "max_tokens": 1,
          "verbosity": "low", "store": true, "service_tier": "auto"})";
  GatewayHarness harness;
  const HttpAnswer answer = harness.Post("/v1/chat/completions", kChat);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("x-retroinfer-ignored"), "store, messages[].mood, verbosity");
  const HttpAnswer tokens = harness.Post("/tokenize", R"({"prompt": "a", "colour": 1})");
  EXPECT_EQ(tokens.headers.at("x-retroinfer-ignored"), "colour");
  EXPECT_EQ(harness.Post("/tokenize", R"({"prompt": "a"})").headers.count("x-retroinfer-ignored"),
            0U);
  GatewayHarness strict({.gateway = {.strict_parameters = true}});
  const HttpAnswer refused = strict.Post("/v1/chat/completions", kChat);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "store");
}

TEST(Gateway, AnswersUnderEachOfTheModelsNames) {
  GatewayHarness harness({.gateway = {.model_names = {"gpt-4o"}}});
  const Json list = Json::parse(harness.Get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "fake-model");
  EXPECT_EQ(list["data"][1]["id"], "gpt-4o");
  EXPECT_EQ(harness.Get("/v1/models/gpt-4o").status, 200);
  const HttpAnswer answer =
      harness.Post("/v1/completions", R"({"prompt": "a", "model": "gpt-4o", "max_tokens": 1})");
  EXPECT_EQ(Json::parse(answer.body)["model"], "gpt-4o");
  EXPECT_EQ(harness.Post("/v1/completions", R"({"prompt": "a", "model": "gpt-5"})").status, 404);
}

TEST(Gateway, TakesTheKeyWhereAnthropicsClientsHaveIt) {
  GatewayHarness::Settings settings;
  settings.gateway.keys = *common::KeyHolder::Open("secret", "");
  GatewayHarness harness(settings);
  EXPECT_EQ(harness.Get("/v1/models", "x-api-key: secret\r\n").status, 200);
  EXPECT_EQ(harness.Get("/v1/models", "x-api-key: other\r\n").status, 401);
  EXPECT_EQ(harness.Get("/v1/models", "x-api-key: secret\r\nAuthorization: Bearer x\r\n").status,
            401);
  const HttpAnswer refused = harness.Post("/v1/messages", "{}");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "authentication_error");
}

TEST(Gateway, ServesThePage) {
  GatewayHarness harness;
  const HttpAnswer page = harness.Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.headers.at("content-security-policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(page.body, HasSubstr("</html>"));
  const HttpAnswer script = harness.Get("/page/main.js?x=1");
  EXPECT_EQ(script.headers.at("content-type"), "text/javascript; charset=utf-8");
  const HttpAnswer same = harness.Get(
      "/page/main.js", absl::StrCat("If-None-Match: ", script.headers.at("etag"), "\r\n"));
  EXPECT_EQ(same.status, 304);
  ASSERT_TRUE(harness.BecomesHealthy());
  test_support::HttpClient client(harness.port());
  for (const char* path : {"/", "/health", "/v1/models"}) {
    client.Send(absl::StrCat("HEAD ", path, " HTTP/1.1\r\nHost: h\r\n\r\n"));
    HttpAnswer head = client.ReadHead();  // were there a body, the next head would not be read
    EXPECT_EQ(head.status, 200) << path;
    EXPECT_GT(std::stoi(head.headers["content-length"]), 0) << path;
  }
  EXPECT_THAT(harness.metrics().Render(), HasSubstr("path=\"/page/main.js\",status=\"304\""));
}

TEST(Gateway, ServesNoPageWhereNoneIsWanted) {
  GatewayHarness::Settings settings;
  settings.gateway.page = false;
  GatewayHarness harness(settings);
  EXPECT_EQ(harness.Get("/").status, 404);
  EXPECT_EQ(harness.Get("/page/main.js").status, 404);
  EXPECT_EQ(harness.Get("/v1/models").status, 200);
}

TEST(Gateway, TellsWhatTheWorkerDoes) {
  GatewayHarness harness;
  const Json before = Json::parse(harness.Get("/stats").body);
  EXPECT_EQ(before["model"], "fake-model");
  EXPECT_EQ(before["requests_running"], 0);
  EXPECT_TRUE(before["page_hits_total"].is_number_unsigned());
  GatewayHarness::Settings settings;
  settings.worker_address = "unix:/nothing/here.sock";
  GatewayHarness alone(settings);
  EXPECT_EQ(alone.Get("/stats").status, 503);
}

TEST(Gateway, TokenizesAndBack) {
  GatewayHarness harness;
  const HttpAnswer tokens = harness.Post("/tokenize", R"({"prompt": "abc"})");
  EXPECT_EQ(Json::parse(tokens.body)["tokens"].dump(), "[97,98,99]");
  EXPECT_EQ(Json::parse(tokens.body)["count"], 3);
  EXPECT_EQ(
      harness.Post("/tokenize", R"({"prompt": "abc", "return_tokens": false})").body.find("tokens"),
      std::string::npos);
  const HttpAnswer chat =
      harness.Post("/tokenize", R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(Json::parse(chat.body)["tokens"].dump(), "[104,105]");
  const HttpAnswer text = harness.Post("/detokenize", R"({"tokens": [97, 98, 226]})");
  EXPECT_EQ(Json::parse(text.body)["prompt"], "ab\ufffd");
  EXPECT_EQ(harness.Post("/detokenize", R"({"tokens": [100000]})").status, 400);
}

TEST(Gateway, BadBodiesHaveTheirStatusAndLeaveNothing) {
  GatewayHarness harness;
  std::string deep(100'000, '[');
  for (const std::string& body :
       {std::string("{"), std::string("nonsense"), std::string(R"({"prompt": NaN})"),
        std::string(R"({"prompt": "a", "prompt": "b"})"), std::string("{\"prompt\": \"\xff\"}"),
        deep, "{\"prompt\": " + deep, std::string(R"({"prompt": "a", "temperature": 1e999})"),
        std::string(R"(["prompt"])"), std::string("")}) {
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
      const HttpAnswer answer = harness.Post(path, body);
      EXPECT_EQ(answer.status, 400) << body.substr(0, 40);
      EXPECT_FALSE(Json::parse(answer.body)["error"]["message"].get<std::string>().empty());
    }
  }
  EXPECT_EQ(harness.worker().engine().submitted(), 0);
  EXPECT_THAT(harness.metrics().Render(), HasSubstr("retroinfer_gateway_generations 0"));
}

TEST(Gateway, LargeBodiesAreParsedElsewhere) {
  GatewayHarness harness;
  const HttpAnswer answer = harness.Post(
      "/tokenize", absl::StrCat(R"({"prompt": ")", std::string(1'000'000, 'a'), "\"}"));
  EXPECT_EQ(Json::parse(answer.body)["count"], 1'000'000);
  EXPECT_EQ(harness.Post("/tokenize", std::string(1'000'000, '{')).status, 400);
}

TEST(Gateway, KeepsARequestsName) {
  GatewayHarness harness;
  const HttpAnswer named =
      harness.Post("/v1/completions", R"({"prompt": "a"})", "X-Request-Id: mine-1\r\n");
  EXPECT_EQ(named.headers.at("x-request-id"), "mine-1");
  EXPECT_EQ(Json::parse(named.body)["id"], "cmpl-mine-1");
  EXPECT_EQ(harness.worker().engine().last_request().request_id, "mine-1");
  const HttpAnswer other =
      harness.Post("/v1/completions", R"({"prompt": "a"})", "X-Request-Id: not a name\r\n");
  EXPECT_EQ(other.status, 200);
  EXPECT_EQ(other.headers.at("x-request-id").size(), 32U);
}

}  // namespace
}  // namespace retroinfer::gateway
