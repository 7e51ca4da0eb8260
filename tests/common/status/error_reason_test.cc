#include "common/status/error_reason.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(ErrorReason, RoundTripsAndKeepsCodeAndMessage) {
  const absl::Status status = WithReason(absl::InvalidArgumentError("too long"), "CONTEXT_TOO_LONG",
                                         {{"prompt_tokens", "70000"}, {"max_model_len", "65536"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "too long");
  const ErrorReason reason = ReasonOf(status);
  EXPECT_EQ(reason.reason, "CONTEXT_TOO_LONG");
  EXPECT_THAT(reason.metadata,
              UnorderedElementsAre(Pair("prompt_tokens", "70000"), Pair("max_model_len", "65536")));
}

TEST(ErrorReason, AStatusWithoutOneHasAnEmptyReason) {
  EXPECT_EQ(ReasonOf(absl::InternalError("x")).reason, "");
  EXPECT_EQ(ReasonOf(absl::OkStatus()).reason, "");
}

TEST(ErrorReason, ASecondReasonReplacesTheFirst) {
  absl::Status status = WithReason(absl::UnavailableError("x"), "A", {{"k", "1"}});
  status = WithReason(status, "B");
  EXPECT_EQ(ReasonOf(status).reason, "B");
  EXPECT_THAT(ReasonOf(status).metadata, IsEmpty());
}

TEST(ErrorReason, ARetryIsHintedAtOnlyWhereOneWasGiven) {
  const absl::Status status = WithReason(absl::UnavailableError("x"), "A");
  EXPECT_EQ(RetryDelayOf(status), std::nullopt);
  const absl::Status hinted = WithRetry(status, absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelayOf(hinted), absl::Milliseconds(1500));
  EXPECT_EQ(ReasonOf(hinted).reason, "A");
  EXPECT_EQ(RetryDelayOf(WithReason(hinted, "B")), absl::Milliseconds(1500));
}

}  // namespace
}  // namespace retroinfer::common
