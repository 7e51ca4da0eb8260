#include "http_gateway/server/scoring.h"

#include <gtest/gtest.h>

#include "tests/http_gateway/gateway_harness.h"
#include "tests/http_gateway/http_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using test_support::HttpClient;

constexpr char kScore[] = "/score";
constexpr char kBody[] = R"({"prompt": "ab", "continuations": ["c"]})";

// The fake engine gives each token a log-probability of minus its id, and greedy takes even ones.
TEST(Scoring, MeasuresContinuationsAndThePrompt) {
  GatewayHarness harness;
  const HttpAnswer answer = harness.Post(
      kScore, R"({"model": "fake-model", "prompt": "ab", "continuations": ["cd", [100, 102]],
                  "logprobs": 1, "prompt_logprobs": 0, "policy": "full"})",
      "X-Request-Id: mine\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = Json::parse(answer.body);
  EXPECT_EQ(json["id"], "score-mine");
  EXPECT_EQ(json["object"], "score");
  EXPECT_EQ(json["model"], "fake-model");
  EXPECT_EQ(json["prompt"]["token_logprobs"].dump(), "[null,-98]");
  ASSERT_EQ(json["continuations"].size(), 2U);
  const Json& first = json["continuations"][0];
  EXPECT_EQ(first["index"], 0);
  EXPECT_EQ(first["tokens"].dump(), R"(["c","d"])");
  EXPECT_EQ(first["token_ids"].dump(), "[99,100]");
  EXPECT_EQ(first["token_logprobs"].dump(), "[-99,-100]");
  EXPECT_EQ(first["ranks"].dump(), "[2,1]");
  EXPECT_EQ(first["is_greedy"].dump(), "[false,true]");
  EXPECT_EQ(first["top_logprobs"][0].size(), 1U);
  EXPECT_EQ(first["sum_logprob"].get<double>(), -199);
  EXPECT_EQ(first["all_greedy"], false);
  EXPECT_EQ(json["continuations"][1]["all_greedy"], true);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(harness.worker().engine().last_request().attention.policy, PolicyKind::kFull);
}

TEST(Scoring, ErrorsAreThoseOfTheOneTable) {
  WorkerHarness::Settings worker;
  worker.engine.limits.max_live_requests = 1;
  GatewayHarness harness({.worker = worker});
  const auto code = [&](const std::string& body) {
    const HttpAnswer answer = harness.Post(kScore, body);
    return std::to_string(answer.status) + " " +
           Json::parse(answer.body)["error"]["code"].get<std::string>();
  };
  EXPECT_EQ(code("{"), "400 invalid_json");
  EXPECT_EQ(code(R"({"model": "other", "prompt": "a", "continuations": ["b"]})"),
            "404 model_not_found");
  EXPECT_EQ(code(R"({"prompt": "", "continuations": ["b"], "add_special_tokens": false})"),
            "400 empty_prompt");
  EXPECT_EQ(code(R"({"prompt": "a", "continuations": [[100000]]})").substr(0, 4), "400 ");
  EXPECT_EQ(harness.Get(kScore).status, 405);
  harness.worker().engine().Hold(true);
  HttpClient client(harness.port());
  client.Post(kScore, kBody);
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  EXPECT_EQ(code(kBody), "429 queue_full");
  harness.worker().engine().Hold(false);
  EXPECT_EQ(client.Read().status, 200);
}

TEST(Scoring, AMeasurementThatIsCutShortIsAnError) {
  GatewayHarness harness;
  harness.worker().engine().Hold(true);
  const HttpAnswer late =
      harness.Post(kScore, R"({"prompt": "ab", "continuations": ["c"], "timeout": 0.05})");
  EXPECT_EQ(late.status, 504) << late.body;
  HttpClient client(harness.port());
  client.Post(kScore, kBody, "X-Request-Id: cut\r\n");
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  harness.worker().engine().Abort("cut");
  const HttpAnswer cut = client.Read();
  EXPECT_EQ(cut.status, 503) << cut.body;
  EXPECT_EQ(Json::parse(cut.body)["error"]["code"], "aborted");
}

TEST(Scoring, AClientThatGoesAwayEndsItsRequest) {
  GatewayHarness harness;
  harness.worker().engine().Hold(true);
  {
    HttpClient client(harness.port());
    client.Post(kScore, kBody);
    ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  }
  EXPECT_TRUE(harness.worker().engine().AwaitLive(0));
}

// Half a body and the end of the connection: nothing of it reaches the worker, or stays.
TEST(Scoring, AnUploadThatIsGivenUpIsForgotten) {
  GatewayHarness harness;
  for (const std::string framing : {"Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"}) {
    HttpClient client(harness.port());
    client.Send(absl::StrCat(
        "POST /score HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n", framing, "\r\n"));
    client.Send(framing[0] == 'C' ? R"({"prompt": )" : "b\r\n{\"prompt\": \r\n");
  }
  EXPECT_EQ(harness.Post(kScore, kBody).status, 200);
  EXPECT_EQ(harness.worker().engine().submitted(), 1);
}

TEST(Scoring, CountsAmongWhatIsAnsweredAtOnce) {
  GatewayHarness harness({.gateway = {.generations_max = 1}});
  harness.worker().engine().Hold(true);
  HttpClient client(harness.port());
  client.Post(kScore, kBody);
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  EXPECT_EQ(harness.Post(kScore, kBody).status, 429);
  EXPECT_EQ(harness.Post("/v1/completions", R"({"prompt": "a"})").status, 429);
  harness.worker().engine().Hold(false);
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(harness.Post(kScore, kBody).status, 200);
}

}  // namespace
}  // namespace retroinfer::gateway
