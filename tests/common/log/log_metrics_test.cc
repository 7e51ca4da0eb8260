#include "common/log/log_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <string>

#include "common/log/process_log.h"

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

TEST(LogMetrics, LostLinesAreCounted) {
  Metrics metrics("a_service", "1", "r", "cpu");
  AddLogMetrics(&metrics, "a_service");
  EXPECT_THAT(metrics.Render(),
              HasSubstr("retroinfer_log_lines_dropped_total{service=\"a_service\"} 0\n"));
  ASSERT_TRUE(StartProcessLog("a_service", {.file = "/dev/full"}).ok());
  spdlog::info("lost");
  spdlog::info("lost too");
  FlushProcessLog();
  EXPECT_THAT(metrics.Render(),
              HasSubstr("retroinfer_log_lines_dropped_total{service=\"a_service\"} 2\n"));
  EXPECT_THAT(metrics.Render(),
              HasSubstr("retroinfer_log_lines_dropped_total{service=\"a_service\"} 2\n"));
}

}  // namespace
}  // namespace retroinfer::common
