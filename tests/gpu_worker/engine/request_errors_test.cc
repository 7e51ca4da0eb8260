#include "gpu_worker/engine/request_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

void Expect(const absl::Status& status, absl::StatusCode code, const std::string& reason,
            bool retry) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(common::ReasonOf(status).reason, reason) << status;
  EXPECT_EQ(common::RetryDelayOf(status).has_value(), retry) << status;
}

TEST(RequestErrorsTest, ARetryIsHintedAtWhereItCanHelp) {
  Expect(QueueFullError(8, 8, absl::ZeroDuration()), absl::StatusCode::kResourceExhausted,
         "QUEUE_FULL", true);
  Expect(WaitingTokensFullError(1, 2, 2, absl::ZeroDuration()),
         absl::StatusCode::kResourceExhausted, "WAITING_TOKENS_FULL", true);
  Expect(WaitTooLongError(absl::Seconds(9), absl::Seconds(5)), absl::StatusCode::kResourceExhausted,
         "WAIT_TOO_LONG", true);
  Expect(DeadlineUnreachableError(absl::Seconds(9), absl::Seconds(5)),
         absl::StatusCode::kDeadlineExceeded, "DEADLINE_UNREACHABLE", false);
  Expect(DrainingError(), absl::StatusCode::kUnavailable, "DRAINING", true);
  Expect(RequestIdInUseError("r"), absl::StatusCode::kAlreadyExists, "REQUEST_ID_IN_USE", false);
  Expect(CapacityExceededError(10, 5, {{12, 12, 12}}, PolicyKind::kWave),
         absl::StatusCode::kResourceExhausted, "CAPACITY_EXCEEDED", false);
  Expect(SettingsExceededError(PolicyKind::kStreaming, 9, 600, 8, 500),
         absl::StatusCode::kResourceExhausted, "CAPACITY_EXCEEDED", false);
  Expect(RequestFailure(absl::ResourceExhaustedError("x")), absl::StatusCode::kResourceExhausted,
         "OUT_OF_MEMORY", true);
  Expect(RequestFailure(
             common::WithReason(absl::ResourceExhaustedError("x"), "CONSTRAINT_TOO_COMPLEX")),
         absl::StatusCode::kResourceExhausted, "CONSTRAINT_TOO_COMPLEX", false);
  Expect(RequestFailure(absl::UnavailableError("x")), absl::StatusCode::kUnavailable, "NOT_READY",
         true);
  Expect(RequestFailure(common::WithReason(absl::UnavailableError("x"), "KV_NOT_READ")),
         absl::StatusCode::kUnavailable, "KV_NOT_READ", true);
}

TEST(RequestErrorsTest, TheLongerTheWaitTheLaterTheRetry) {
  EXPECT_EQ(RetryDelayAt(absl::ZeroDuration()), kRetryDelay);
  EXPECT_EQ(RetryDelayAt(absl::Seconds(15)), absl::Seconds(8));
  EXPECT_EQ(RetryDelayAt(absl::InfiniteDuration()), absl::Minutes(1));
  EXPECT_EQ(common::RetryDelayOf(QueueFullError(8, 8, absl::Seconds(20))), absl::Seconds(10));
}

TEST(RequestErrorsTest, ErrorsComeWithTheirNumbers) {
  EXPECT_EQ(
      common::ReasonOf(QueueFullError(7, 8, absl::ZeroDuration())).metadata,
      (std::map<std::string, std::string>{{"live_requests", "7"}, {"max_live_requests", "8"}}));
  const absl::Status status =
      CapacityExceededError(1000, 24, {{900, 1024, 900}}, PolicyKind::kFull);
  EXPECT_EQ(common::ReasonOf(status).metadata,
            (std::map<std::string, std::string>{{"needed_tokens", "1024"},
                                                {"capacity_tokens", "900"},
                                                {"prompt_tokens", "1000"},
                                                {"max_tokens", "24"}}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("maximum context length is 900 tokens"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("policy wave"));
}

// A store may refuse with INVALID_ARGUMENT what the worker asked wrongly: not the client's fault.
TEST(RequestErrorsTest, WhatThePartsSayOfEachOtherIsInternal) {
  for (const absl::Status& status :
       {common::WithReason(absl::InvalidArgumentError("bad extent"), "BAD_EXTENT"),
        absl::DataLossError("bad extent"), absl::InternalError("bad extent")}) {
    const absl::Status told = RequestFailure(status);
    Expect(told, absl::StatusCode::kInternal, "INTERNAL", false);
    EXPECT_EQ(told.message(), "bad extent");
  }
}

}  // namespace
}  // namespace retroinfer
