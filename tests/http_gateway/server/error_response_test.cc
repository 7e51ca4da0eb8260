#include "http_gateway/server/error_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/error_reason.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

using ::testing::Contains;
using ::testing::Pair;

TEST(ErrorResponse, HasTheHeadersThatBelongToItsStatus) {
  const HttpResponse busy = ErrorResponse(
      common::WithRetry(common::WithReason(absl::ResourceExhaustedError("full"), "QUEUE_FULL"),
                        absl::Seconds(3)),
      ErrorOrigin::kWorker, {{"X-Request-Id", "a"}});
  EXPECT_EQ(busy.status, 429);
  EXPECT_THAT(busy.headers, Contains(Pair("X-Request-Id", "a")));
  EXPECT_THAT(busy.headers, Contains(Pair("Retry-After", "3")));
  EXPECT_EQ(Json::parse(busy.body)["error"]["code"], "queue_full");
  const HttpResponse stranger =
      ErrorResponse(absl::UnauthenticatedError("no"), ErrorOrigin::kGateway);
  EXPECT_EQ(stranger.status, 401);
  EXPECT_THAT(stranger.headers, Contains(Pair("WWW-Authenticate", "Bearer")));
}

TEST(ErrorResponse, DrainingMayBeTriedAgain) {
  const HttpResponse response = ErrorResponse(DrainingError(), ErrorOrigin::kGateway);
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.headers, Contains(Pair("Retry-After", "1")));
  EXPECT_EQ(Json::parse(response.body)["error"]["code"], "draining");
}

}  // namespace
}  // namespace retroinfer::gateway
