#include "common/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "common/status/error_reason.h"
#include "retroinfer/rpc/v1/error_details.pb.h"

namespace retroinfer::common {
namespace {

TEST(GrpcStatusTest, KeepsCodesAndMessagesBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "message");
    const grpc::Status translated = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(translated.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(translated).code(), status.code());
    EXPECT_EQ(FromGrpcStatus(translated).message(), status.message());
  }
}

TEST(GrpcStatusTest, KeepsReasonsBothWays) {
  const absl::Status status = WithReason(absl::InvalidArgumentError("too long"), "CONTEXT_TOO_LONG",
                                         {{"max_model_len", "64"}});
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
}

TEST(GrpcStatusTest, DetailsAreWhatGoogleRpcClientsDecode) {
  rpc::v1::Status details;
  ASSERT_TRUE(details.ParseFromString(
      ToGrpcStatus(WithReason(absl::NotFoundError("gone"), "GONE")).error_details()));
  EXPECT_EQ(details.code(), 5);
  EXPECT_EQ(details.message(), "gone");
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  rpc::v1::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(details.details(0).value()));
  EXPECT_EQ(info.reason(), "GONE");
  EXPECT_EQ(info.domain(), "retroinfer");
}

TEST(GrpcStatusTest, ARetryHintIsARetryInfoBothWays) {
  const absl::Status status =
      WithRetry(WithReason(absl::ResourceExhaustedError("full"), "QUEUE_FULL", {{"live", "3"}}),
                absl::Milliseconds(2250));
  const grpc::Status translated = ToGrpcStatus(status);
  EXPECT_EQ(FromGrpcStatus(translated), status);
  rpc::v1::Status details;
  ASSERT_TRUE(details.ParseFromString(translated.error_details()));
  ASSERT_EQ(details.details_size(), 2);
  EXPECT_EQ(details.details(1).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  rpc::v1::RetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(details.details(1).value()));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

TEST(GrpcStatusTest, ImpossibleRetryHintsAreIgnored) {
  for (const int64_t seconds : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    rpc::v1::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(seconds);
    rpc::v1::Status details;
    details.add_details()->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
    retry.SerializeToString(details.mutable_details(0)->mutable_value());
    const absl::Status status = FromGrpcStatus(
        grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", details.SerializeAsString()));
    EXPECT_EQ(RetryDelayOf(status), std::nullopt) << seconds;
  }
}

TEST(GrpcStatusTest, AnErrorWithoutReasonIsNamedByItsCode) {
  const absl::Status status = FromGrpcStatus(ToGrpcStatus(absl::UnavailableError("x")));
  EXPECT_EQ(ReasonOf(status).reason, "UNAVAILABLE");
}

TEST(GrpcStatusTest, GarbageDetailsAreIgnored) {
  const grpc::Status garbage(grpc::StatusCode::INTERNAL, "x", "\xff\xff garbage");
  EXPECT_EQ(FromGrpcStatus(garbage), absl::InternalError("x"));
}

}  // namespace
}  // namespace retroinfer::common
