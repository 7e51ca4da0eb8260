#include "http_gateway/server/gateway_drain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/http_gateway/gateway_harness.h"
#include "tests/http_gateway/http_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using test_support::HttpClient;
using ::testing::HasSubstr;

constexpr char kStream[] =
    R"({"prompt": "a", "max_tokens": 4000, "ignore_eos": true, "stream": true})";
constexpr absl::Duration kLong = absl::Minutes(2);

void ExpectDraining(const HttpAnswer& answer) {
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_EQ(answer.headers.count("retry-after"), 1U);
  EXPECT_EQ(Json::parse(answer.body)["error"]["code"], "draining") << answer.body;
}

// A stream that goes on, and a request that has no answer yet.
class GatewayDrainTest : public ::testing::Test {
 protected:
  static GatewayHarness::Settings SlowEngine() {
    GatewayHarness::Settings settings;
    settings.worker.engine.step_time = absl::Milliseconds(5);
    return settings;
  }
  GatewayDrainTest() : harness_(SlowEngine()), stream_(harness_.port()), queued_(harness_.port()) {
    stream_.Post("/v1/completions", kStream);
    stream_head_ = stream_.ReadHead();
    EXPECT_FALSE(stream_.ReadChunk().empty());
    harness_.worker().engine().Hold(true);
    queued_.Post("/v1/completions", R"({"prompt": "b", "max_tokens": 2})");
    EXPECT_TRUE(harness_.worker().engine().AwaitLive(2));
  }

  void ExpectEndedWithErrors() {
    ExpectDraining(queued_.Read());
    const std::string rest = stream_.ReadBody(stream_head_);
    EXPECT_THAT(rest, HasSubstr(R"("code":"draining")"));
    EXPECT_THAT(rest, ::testing::Not(HasSubstr("[DONE]")));
    EXPECT_TRUE(harness_.worker().engine().AwaitLive(0));
  }

  GatewayHarness harness_;
  HttpClient stream_, queued_;
  HttpAnswer stream_head_;
};

TEST_F(GatewayDrainTest, WhatOutlastsTheDeadlineEndsWithAnError) {
  harness_.AdvanceDrain(absl::Milliseconds(50));
  ExpectEndedWithErrors();
  EXPECT_TRUE(harness_.AwaitStopped());
}

TEST_F(GatewayDrainTest, ASecondSignalEndsAnswersAtOnce) {
  harness_.AdvanceDrain(kLong);
  EXPECT_FALSE(harness_.stopped());
  harness_.AdvanceDrain(kLong);
  ExpectEndedWithErrors();
  EXPECT_TRUE(harness_.AwaitStopped());
}

TEST_F(GatewayDrainTest, AThirdSignalWaitsForNobody) {
  for (int i = 0; i < 3; ++i) harness_.AdvanceDrain(kLong);
  EXPECT_TRUE(harness_.AwaitStopped());
}

TEST_F(GatewayDrainTest, LiveAnswersGoOnAndNewWorkIsRefused) {
  HttpClient idle(harness_.port()), uploading(harness_.port());
  idle.Get("/v1/models");
  EXPECT_EQ(idle.Read().status, 200);
  uploading.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
      "Content-Length: 15\r\n\r\n{\"prompt\"");
  EXPECT_EQ(harness_.Get("/v1/models").status, 200);  // what came before has been read
  harness_.AdvanceDrain(kLong);
  for (const char* const path : {"/v1/completions", "/v1/chat/completions", "/score"}) {
    ExpectDraining(harness_.Post(path, "{}"));
  }
  uploading.Send(": \"a\"}");
  ExpectDraining(uploading.Read());
  EXPECT_TRUE(uploading.AwaitEnd());
  // A connection that was open meanwhile learns why, and ends.
  idle.Post("/v1/completions", R"({"prompt": "a"})");
  const HttpAnswer refused = idle.Read();
  ExpectDraining(refused);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  const HttpAnswer health = harness_.Get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("draining"));
  EXPECT_FALSE(harness_.stopped());
  harness_.worker().engine().Hold(false);
  EXPECT_EQ(queued_.Read().status, 200);
  EXPECT_THAT(stream_.ReadBody(stream_head_), HasSubstr("[DONE]"));
  EXPECT_TRUE(harness_.AwaitStopped());
}

TEST(GatewayDrain, WithoutRequestsItEndsAtOnceAndListensNoMore) {
  GatewayHarness harness;
  HttpClient idle(harness.port());
  idle.Get("/v1/models");
  EXPECT_EQ(idle.Read().status, 200);
  harness.AdvanceDrain(kLong);
  EXPECT_TRUE(harness.AwaitStopped());
  EXPECT_TRUE(idle.AwaitEnd());
  EXPECT_LT(HttpClient(harness.port()).fd(), 0);
}

}  // namespace
}  // namespace retroinfer::gateway
