#include "http_gateway/server/gateway_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

using ::testing::HasSubstr;

TEST(GatewayMetrics, Counts) {
  common::Metrics metrics("http_gateway", "1", "r", "none");
  GatewayMetrics counts(metrics);
  counts.OnResponse("/v1/models", 200);
  counts.OnResponse("/v1/models", 200);
  counts.OnResponse("other", 404);
  counts.OnGenerations(3);
  counts.OnStreamBytes(100);
  counts.OnClientGone();
  const std::string text = metrics.Render();
  EXPECT_THAT(text,
              HasSubstr(R"(retroinfer_gateway_responses_total{path="/v1/models",status="200"} 2)"));
  EXPECT_THAT(text,
              HasSubstr(R"(retroinfer_gateway_responses_total{path="other",status="404"} 1)"));
  EXPECT_THAT(text, HasSubstr("retroinfer_gateway_generations 3"));
  EXPECT_THAT(text, HasSubstr("retroinfer_gateway_stream_bytes_total 100"));
  EXPECT_THAT(text, HasSubstr("retroinfer_gateway_clients_gone_total 1"));
}

}  // namespace
}  // namespace retroinfer::gateway
