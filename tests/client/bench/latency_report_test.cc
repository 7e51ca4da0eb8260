#include "client/bench/latency_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

TEST(SummarizeTest, InterpolatesPercentiles) {
  // What numpy's mean, median, std and percentile(99) say.
  const LatencySummary summary = Summarize({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(summary.mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.median, 2.5);
  EXPECT_NEAR(summary.std, 1.118033988749895, 1e-12);
  EXPECT_NEAR(summary.p99, 3.97, 1e-12);
  EXPECT_DOUBLE_EQ(Summarize({7}).p99, 7);
  EXPECT_DOUBLE_EQ(Summarize({}).p99, 0);
}

RequestRecord Record(int64_t output, absl::Duration first, std::vector<absl::Duration> gaps) {
  RequestRecord record{.sent = true,
                       .prompt_tokens = 10,
                       .cached_tokens = 4,
                       .completion_tokens = output,
                       .first_token = first,
                       .gaps = std::move(gaps)};
  record.end = first;
  for (const absl::Duration gap : record.gaps) record.end += gap;
  return record;
}

TEST(LatencyReportTest, CountsWhatSucceededAndNamesWhatFailed) {
  LoadRun run;
  run.duration = absl::Seconds(2);
  run.records = {
      Record(3, absl::Milliseconds(100), {absl::Milliseconds(10), absl::Milliseconds(30)}),
      Record(1, absl::Milliseconds(200), {}), RequestRecord{.sent = true, .error = "full"},
      RequestRecord{.sent = true, .error = "full"}, RequestRecord{}};
  const nlohmann::json report = LatencyReport(run);
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["failed"], 2);
  EXPECT_EQ(report["errors"], nlohmann::json({"full"}));
  EXPECT_EQ(report["total_input_tokens"], 20);
  EXPECT_EQ(report["total_cached_tokens"], 8);
  EXPECT_EQ(report["total_output_tokens"], 4);
  EXPECT_DOUBLE_EQ(report["request_throughput"], 1);
  EXPECT_DOUBLE_EQ(report["output_throughput"], 2);
  EXPECT_DOUBLE_EQ(report["total_token_throughput"], 12);
  EXPECT_DOUBLE_EQ(report["mean_ttft_ms"], 150);
  EXPECT_DOUBLE_EQ(report["mean_tpot_ms"], 20);  // of the only request with a second token
  EXPECT_DOUBLE_EQ(report["median_itl_ms"], 20);
  EXPECT_DOUBLE_EQ(report["mean_e2el_ms"], 170);
  const std::string text = FormatReport(report);
  EXPECT_THAT(text, HasSubstr("2 completed, 2 failed, in 2.00 s (1.00 a second)"));
  EXPECT_THAT(text, HasSubstr("failed: full\n"));
}

TEST(LatencyReportTest, TellsClassesApartAndCountsThoseThatKeepTheGoals) {
  LoadRun run;
  run.duration = absl::Seconds(2);
  run.records = {
      Record(3, absl::Milliseconds(100), {absl::Milliseconds(10), absl::Milliseconds(30)}),
      Record(3, absl::Milliseconds(100), {absl::Milliseconds(10), absl::Milliseconds(50)}),
      Record(1, absl::Milliseconds(201), {}), Record(1, absl::Milliseconds(200), {}),
      RequestRecord{.sent = true, .error = "full", .request_class = "chat"}};
  run.records[0].request_class = run.records[1].request_class = "chat";
  run.records[2].request_class = run.records[3].request_class = "document";
  const LatencyGoal goal{.first_token = absl::Milliseconds(200),
                         .per_token = absl::Milliseconds(25)};
  const nlohmann::json report = LatencyReport(run, goal);
  EXPECT_EQ(report["good"], 2);
  EXPECT_DOUBLE_EQ(report["request_goodput"], 1);
  EXPECT_EQ(report["classes"].size(), 2u);
  EXPECT_EQ(report["classes"]["chat"]["completed"], 2);
  EXPECT_EQ(report["classes"]["chat"]["failed"], 1);
  EXPECT_EQ(report["classes"]["chat"]["good"], 1);
  EXPECT_EQ(report["classes"]["document"]["good"], 1);
  EXPECT_DOUBLE_EQ(report["classes"]["document"]["median_ttft_ms"], 200.5);
  EXPECT_THAT(FormatReport(report), HasSubstr("goodput            1.00 requests a second (2"));
  EXPECT_THAT(FormatReport(report), HasSubstr("document"));
  EXPECT_FALSE(LatencyReport(run).contains("request_goodput"));
}

TEST(LatencyReportTest, SurvivesARunWithoutRequests) {
  EXPECT_EQ(LatencyReport(LoadRun())["completed"], 0);
}

}  // namespace
}  // namespace retroinfer::client
