#include "http_gateway/server/computed_answer.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/http_gateway/gateway_harness.h"
#include "tests/http_gateway/http_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using test_support::HttpClient;

struct Kind {
  const char* path;
  const char* body;
  const char* body_for_another_model;
};

class ComputedAnswerTest : public testing::TestWithParam<Kind> {};

TEST_P(ComputedAnswerTest, AnotherModelIsNotFound) {
  GatewayHarness harness;
  const HttpAnswer answer = harness.Post(GetParam().path, GetParam().body_for_another_model);
  EXPECT_EQ(answer.status, 404) << answer.body;
  EXPECT_EQ(Json::parse(answer.body)["error"]["code"], "model_not_found");
  EXPECT_EQ(harness.worker().engine().submitted(), 0);
}

TEST_P(ComputedAnswerTest, AClientThatGoesAwayEndsTheCallAndLeavesItsPlace) {
  GatewayHarness harness({.gateway = {.generations_max = 1}});
  harness.worker().engine().Hold(true);
  {
    HttpClient client(harness.port());
    client.Post(GetParam().path, GetParam().body);
    ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
    EXPECT_EQ(harness.Post(GetParam().path, GetParam().body).status, 429);
  }
  EXPECT_TRUE(harness.worker().engine().AwaitLive(0));
  harness.worker().engine().Hold(false);
  while (harness.Post(GetParam().path, GetParam().body).status == 429) {
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_EQ(harness.Post(GetParam().path, GetParam().body).status, 200);
}

TEST_P(ComputedAnswerTest, ARequestThatTheWorkerAbortsIsUnavailable) {
  GatewayHarness harness;
  harness.worker().engine().Hold(true);
  HttpClient client(harness.port());
  client.Post(GetParam().path, GetParam().body, "X-Request-Id: cut\r\n");
  ASSERT_TRUE(harness.worker().engine().AwaitLive(1));
  harness.worker().engine().Abort("cut");
  const HttpAnswer cut = client.Read();
  EXPECT_EQ(cut.status, 503) << cut.body;
  EXPECT_EQ(Json::parse(cut.body)["error"]["code"], "aborted");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ComputedAnswerTest,
    testing::Values(Kind{"/v1/completions", R"({"prompt": "ab"})",
                         R"({"prompt": "ab", "model": "other"})"},
                    Kind{"/score", R"({"prompt": "ab", "continuations": ["c"]})",
                         R"({"prompt": "ab", "continuations": ["c"], "model": "other"})"}));

}  // namespace
}  // namespace retroinfer::gateway
