#include "http_gateway/api/api_error.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "common/status/error_reason.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

ApiError Of(absl::StatusCode code, const char* reason, ErrorOrigin origin = ErrorOrigin::kWorker) {
  return ToApiError(common::WithReason(absl::Status(code, "why"), reason), origin);
}

TEST(ApiError, EveryReasonOfTheApiHasItsStatus) {
  using absl::StatusCode;
  EXPECT_EQ(Of(StatusCode::kInvalidArgument, "INVALID_SAMPLING").http_status, 400);
  EXPECT_EQ(Of(StatusCode::kInvalidArgument, "CONTEXT_TOO_LONG").code, "context_length_exceeded");
  EXPECT_EQ(Of(StatusCode::kNotFound, "MODEL_NOT_FOUND").http_status, 404);
  EXPECT_EQ(Of(StatusCode::kResourceExhausted, "QUEUE_FULL").http_status, 429);
  EXPECT_EQ(Of(StatusCode::kResourceExhausted, "CAPACITY_EXCEEDED").http_status, 400);
  EXPECT_EQ(Of(StatusCode::kResourceExhausted, "REQUEST_TOO_LARGE").http_status, 413);
  EXPECT_EQ(Of(StatusCode::kResourceExhausted, "CONSTRAINT_TOO_COMPLEX").http_status, 400);
  EXPECT_EQ(Of(StatusCode::kResourceExhausted, "OUT_OF_MEMORY").http_status, 503);
  EXPECT_EQ(Of(StatusCode::kUnavailable, "DRAINING").http_status, 503);
  EXPECT_EQ(Of(StatusCode::kDeadlineExceeded, "DEADLINE").http_status, 504);
  EXPECT_EQ(Of(StatusCode::kAlreadyExists, "REQUEST_ID_IN_USE").http_status, 409);
  EXPECT_EQ(Of(StatusCode::kFailedPrecondition, "CHAT_TEMPLATE").http_status, 400);
  EXPECT_EQ(Of(StatusCode::kUnimplemented, "METHOD_NOT_ALLOWED").http_status, 405);
  EXPECT_EQ(Of(StatusCode::kInternal, "INTERNAL").http_status, 500);
  EXPECT_EQ(Of(StatusCode::kUnknown, "ANYTHING").http_status, 500);
}

TEST(ApiError, SaysWhenARetryHelps) {
  const absl::Status status = common::WithRetry(
      common::WithReason(absl::UnavailableError("not yet"), "NOT_READY"), absl::Milliseconds(2200));
  EXPECT_EQ(ToApiError(status, ErrorOrigin::kWorker).retry_after_seconds, 3);
  EXPECT_EQ(Of(absl::StatusCode::kResourceExhausted, "QUEUE_FULL").retry_after_seconds, 1);
  EXPECT_FALSE(Of(absl::StatusCode::kInvalidArgument, "X").retry_after_seconds.has_value());
  EXPECT_FALSE(Of(absl::StatusCode::kResourceExhausted, "CAPACITY_EXCEEDED")
                   .retry_after_seconds.has_value());
}

TEST(ApiError, TheWorkersRefusalOfTheGatewaysKeyIsNotTheClientsFault) {
  const auto code = absl::StatusCode::kUnauthenticated;
  EXPECT_EQ(Of(code, "API_KEY_REQUIRED", ErrorOrigin::kGateway).http_status, 401);
  EXPECT_EQ(Of(code, "API_KEY_REQUIRED", ErrorOrigin::kGateway).code, "invalid_api_key");
  EXPECT_EQ(Of(code, "API_KEY_REQUIRED", ErrorOrigin::kWorker).http_status, 502);
}

TEST(ApiError, HidesWhatGrpcSaysOfAWorkerThatIsGone) {
  const ApiError error = ToApiError(
      absl::UnavailableError("connections to all backends failing; unix:/run/secret.sock"),
      ErrorOrigin::kWorker);
  EXPECT_EQ(error.http_status, 503);
  EXPECT_EQ(error.code, "worker_unavailable");
  EXPECT_EQ(error.message.find("secret"), std::string::npos);
}

TEST(ApiError, HasTheShapeOfOpenAi) {
  const absl::Status status = common::WithReason(absl::InvalidArgumentError("n \"is\"\nwrong"),
                                                 "INVALID_VALUE", {{"param", "n"}});
  const Json json = Json::parse(ToApiError(status, ErrorOrigin::kGateway).ToJson());
  EXPECT_EQ(json["error"]["message"], "n \"is\"\nwrong");
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  EXPECT_EQ(json["error"]["param"], "n");
  EXPECT_EQ(json["error"]["code"], "invalid_value");
  const Json plain =
      Json::parse(ToApiError(absl::InternalError("x"), ErrorOrigin::kGateway).ToJson());
  EXPECT_TRUE(plain["error"]["param"].is_null());
}

TEST(ApiError, HasAnthropicsFormForAnthropicsClients) {
  EXPECT_EQ(ErrorFormOf("/v1/messages"), ErrorForm::kAnthropic);
  EXPECT_EQ(ErrorFormOf("/v1/messages/count_tokens"), ErrorForm::kAnthropic);
  EXPECT_EQ(ErrorFormOf("/v1/messagesx"), ErrorForm::kOpenAi);
  EXPECT_EQ(ErrorFormOf(""), ErrorForm::kOpenAi);
  const auto type = [](absl::StatusCode code, const char* reason) {
    const ApiError error = ToApiError(common::WithReason(absl::Status(code, "m"), reason),
                                      ErrorOrigin::kGateway, ErrorForm::kAnthropic);
    return absl::StrCat(error.http_status, " ", error.ToJson());
  };
  const auto json = [](const char* status, const char* name) {
    return absl::StrCat(status, R"( {"type":"error","error":{"type":")", name,
                        R"(","message":"m"}})");
  };
  using absl::StatusCode;
  EXPECT_EQ(type(StatusCode::kUnauthenticated, "X"), json("401", "authentication_error"));
  EXPECT_EQ(type(StatusCode::kInvalidArgument, "X"), json("400", "invalid_request_error"));
  EXPECT_EQ(type(StatusCode::kNotFound, "X"), json("404", "not_found_error"));
  EXPECT_EQ(type(StatusCode::kInvalidArgument, "BODY_TOO_LARGE"), json("413", "request_too_large"));
  EXPECT_EQ(type(StatusCode::kResourceExhausted, "QUEUE_FULL"), json("429", "rate_limit_error"));
  EXPECT_EQ(type(StatusCode::kUnavailable, "X"), json("529", "overloaded_error"));
  EXPECT_EQ(type(StatusCode::kInternal, "X"), json("500", "api_error"));
}

TEST(ApiError, TellsAnthropicsClientsOfAnOverflowInTheirWords) {
  const auto message = [](const char* prompt, const char* most) {
    return ToApiError(
               common::WithReason(
                   absl::InvalidArgumentError("too long"), "CONTEXT_TOO_LONG",
                   {{"prompt_tokens", prompt}, {"max_tokens", "50"}, {"max_model_len", most}}),
               ErrorOrigin::kWorker, ErrorForm::kAnthropic)
        .message;
  };
  EXPECT_EQ(message("120", "100"), "prompt is too long: 120 tokens > 100 maximum");
  EXPECT_EQ(message("80", "100"),
            "input length and `max_tokens` exceed context limit: 80 + 50 > 100, decrease input "
            "length or `max_tokens` and try again");
  EXPECT_EQ(message("many", "100"), "too long");
  const absl::Status capacity =
      common::WithReason(absl::ResourceExhaustedError("never"), "CAPACITY_EXCEEDED",
                         {{"prompt_tokens", "120"}, {"capacity_tokens", "100"}});
  EXPECT_EQ(ToApiError(capacity, ErrorOrigin::kWorker, ErrorForm::kAnthropic).message,
            "prompt is too long: 120 tokens > 100 maximum");
}

}  // namespace
}  // namespace retroinfer::gateway
