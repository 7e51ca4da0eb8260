#include "common/door/grpc_headers.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "common/door/header_block.h"
#include "common/door/http2_frame.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"

namespace retroinfer::common {
namespace {

TEST(GrpcHeaders, TimeoutsHaveAUnit) {
  EXPECT_EQ(ParseGrpcTimeout("3H"), absl::Hours(3));
  EXPECT_EQ(ParseGrpcTimeout("3M"), absl::Minutes(3));
  EXPECT_EQ(ParseGrpcTimeout("3S"), absl::Seconds(3));
  EXPECT_EQ(ParseGrpcTimeout("100m"), absl::Milliseconds(100));
  EXPECT_EQ(ParseGrpcTimeout("0u"), absl::ZeroDuration());
  EXPECT_EQ(ParseGrpcTimeout("99999999n"), absl::Nanoseconds(99'999'999));
  for (const char* bad : {"", "S", "1", "-1S", "1x", "123456789S", "1 0S"}) {
    EXPECT_EQ(ParseGrpcTimeout(bad), absl::InfiniteDuration()) << bad;
  }
}

TEST(GrpcHeaders, ARefusalIsAStatusWithItsReason) {
  const absl::Status status =
      WithReason(absl::UnauthenticatedError("no key: 50 % \xc3\xa9"), "API_KEY_REQUIRED");
  std::string out;
  AppendTrailersOnly(7, status, &out);
  const FrameHeader frame = ParseFrameHeader(out);
  EXPECT_EQ(frame.stream, 7u);
  EXPECT_EQ(frame.flags, frame_flag::kEndStream | frame_flag::kEndHeaders);
  HeaderDecoder decoder;
  HeaderList headers;
  bool complete = false;
  ASSERT_TRUE(decoder.Decode(out.substr(kFrameHeaderBytes), 10'000, &headers, &complete).ok());
  EXPECT_EQ(FindHeader(headers, ":status"), "200");
  EXPECT_EQ(FindHeader(headers, "grpc-status"), "16");
  EXPECT_EQ(FindHeader(headers, "grpc-message"), "no key: 50 %25 %C3%A9");
  std::string details;
  const std::string_view encoded = FindHeader(headers, "grpc-status-details-bin");
  ASSERT_TRUE(absl::Base64Unescape(absl::string_view(encoded.data(), encoded.size()), &details));
  const grpc::Status received(grpc::StatusCode::UNAUTHENTICATED, "", details);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(received)).reason, "API_KEY_REQUIRED");
}

}  // namespace
}  // namespace retroinfer::common
