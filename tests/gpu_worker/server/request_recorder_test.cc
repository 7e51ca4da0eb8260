#include "gpu_worker/server/request_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <sstream>

#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RequestSummary Summary() {
  RequestSummary summary;
  summary.engine_request_id = "r1";
  summary.result.reason = FinishReason::kLength;
  summary.result.prompt_tokens = 16384;
  summary.result.completion_tokens = 11;
  summary.result.queue_time = absl::Milliseconds(3);
  summary.result.prefill_time = absl::Milliseconds(2500);
  summary.result.time_to_first_token = absl::Milliseconds(2510);
  summary.result.decode_time = absl::Milliseconds(200);
  summary.result.kv_read_ratio = 0.042;
  summary.result.unseen = UnseenMass{.mean = 0.126, .largest = 0.3};
  summary.end_to_end = absl::Milliseconds(2712);
  return summary;
}

TEST(RequestRecorder, DescribesARequestInOneLine) {
  EXPECT_EQ(
      DescribeRequest(Summary()),
      "request r1 length: policy wave, prompt 16384 (cached 0), completion 11, queue 0.003 s, "
      "prefill 2.500 s, first token 2.510 s, 20.00 ms/token, read 4.2% of the KV, "
      "left 12.6% of the mass to estimates, total 2.712 s");
}

TEST(RequestRecorder, SaysWhatFailed) {
  RequestSummary summary = Summary();
  summary.result.reason = FinishReason::kError;
  summary.result.completion_tokens = 0;
  summary.result.status = absl::UnavailableError("no store");
  EXPECT_THAT(DescribeRequest(summary), HasSubstr("request r1 error"));
  EXPECT_THAT(DescribeRequest(summary), HasSubstr("UNAVAILABLE: no store"));
  EXPECT_THAT(DescribeRequest(summary), Not(HasSubstr("first token")));
}

TEST(RequestRecorder, CountsInTheMetrics) {
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  RequestRecorder recorder(metrics);
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_requests_total{finish_reason=\"stop\"} 0"));
  EXPECT_THAT(metrics.Render(), HasSubstr("refused_total{reason=\"CAPACITY_EXCEEDED\"} 0"));
  recorder.OnFinished(Summary());
  recorder.OnTokenInterval(absl::Milliseconds(20), 2);
  recorder.OnRefused("", common::WithReason(absl::ResourceExhaustedError("no"), "QUEUE_FULL"));
  recorder.OnRefused("", common::WithReason(absl::InternalError("no"), "A_NEW_REASON"));
  recorder.OnRefused("", absl::InternalError("no"));
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_requests_total{finish_reason=\"length\"} 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_requests_refused_total{reason=\"QUEUE_FULL\"} 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_requests_refused_total{reason=\"OTHER\"} 2"));
  EXPECT_THAT(text, HasSubstr("retroinfer_time_to_first_token_seconds_bucket{le=\"2.5\"} 0"));
  EXPECT_THAT(text, HasSubstr("retroinfer_time_to_first_token_seconds_bucket{le=\"5\"} 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_inter_token_latency_seconds_bucket{le=\"0.01\"} 2"));
  EXPECT_THAT(text, HasSubstr("retroinfer_request_prompt_tokens_bucket{le=\"20000\"} 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_request_unseen_mass_ratio_bucket{le=\"0.1\"} 0"));
  EXPECT_THAT(text, HasSubstr("retroinfer_request_unseen_mass_ratio_bucket{le=\"0.15\"} 1"));
  EXPECT_THAT(text, Not(HasSubstr("r1")));
}

TEST(RequestRecorder, CountsWhatConversationsComputeAgain) {
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  RequestRecorder recorder(metrics);
  recorder.OnFinished(Summary());  // a first turn
  RequestSummary summary = Summary();
  summary.earlier_tokens = 16000;
  summary.result.cached_tokens = 8192;
  recorder.OnFinished(summary);
  summary.result.cached_tokens = 16384;  // more than the turn before had
  recorder.OnFinished(summary);
  summary.result.completion_tokens = 0;  // it ended before its prompt was read
  recorder.OnFinished(summary);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_conversation_prompt_tokens_total 32768\n"));
  EXPECT_THAT(text, HasSubstr("retroinfer_conversation_earlier_tokens_total 32000\n"));
  EXPECT_THAT(text, HasSubstr("retroinfer_conversation_recomputed_tokens_total 7808\n"));
}

TEST(RequestRecorder, AFloodOfRefusalsLeavesFewLines) {
  std::ostringstream log;
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  RequestRecorder recorder(metrics);
  RequestSummary cancelled = Summary();
  cancelled.result.reason = FinishReason::kCancelled;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 5000; ++i) {
    recorder.OnRefused("", absl::UnauthenticatedError("no key"));
    recorder.OnFinished(cancelled);
  }
  const int64_t seconds = absl::ToInt64Seconds(absl::Now() - begin) + 1;
  spdlog::set_default_logger(logger);
  const std::string text = log.str();
  const int64_t lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, 20);
  EXPECT_LE(lines, 20 * (seconds + 1));
  EXPECT_THAT(metrics.Render(),
              HasSubstr("retroinfer_requests_refused_total{reason=\"OTHER\"} 5000"));
}

}  // namespace
}  // namespace retroinfer
