#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/http_get.h"

namespace retroinfer::common {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsTest, PrefixesNamesAndTellsTheBuild) {
  Metrics metrics("store", "0.1.0", "abc", "cpu");
  metrics.Counter("things_total", "Things", {{"kind", "a"}}).Increment(2);
  metrics.Counter("things_total", "Things", {{"kind", "b"}}).Increment();
  metrics.Gauge("level", "Level").Set(7);
  metrics.Histogram("seconds", "Time", {1, 2}).Observe(1.5);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_build_info{backend=\"cpu\",revision=\"abc\","
                              "service=\"store\",version=\"0.1.0\"} 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_things_total{kind=\"a\"} 2"));
  EXPECT_THAT(text, HasSubstr("retroinfer_things_total{kind=\"b\"} 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_level 7"));
  EXPECT_THAT(text, HasSubstr("retroinfer_seconds_bucket{le=\"2\"} 1"));
}

TEST(MetricsTest, TellsOfTheProcessAndItsRestarts) {
  Metrics metrics("store", "1", "r", "cpu");
  EXPECT_THAT(metrics.Render(),
              HasSubstr("retroinfer_process_restarts_total{service=\"store\"} 0"));
  metrics.SetRestarts(3);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_process_restarts_total{service=\"store\"} 3"));
  EXPECT_THAT(text, HasSubstr("\nprocess_open_fds "));
  EXPECT_THAT(text, Not(HasSubstr("\nprocess_resident_memory_bytes 0")));
}

TEST(MetricsTest, UpdatesGaugesAtEachScrapeUntilRemoved) {
  Metrics metrics("store", "1", "r", "cpu");
  auto& gauge = metrics.Gauge("level", "Level");
  const int id = metrics.OnScrape([&] { gauge.Increment(); });
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_level 1"));
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_level 2"));
  metrics.RemoveOnScrape(id);
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_level 2"));
}

TEST(MetricsTest, ServesOverHttp) {
  Metrics metrics("store", "1", "r", "cpu");
  const auto port = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_THAT(test_support::HttpGet(*port, "/metrics"), HasSubstr("retroinfer_build_info"));

  Metrics second("store", "1", "r", "cpu");
  EXPECT_FALSE(second.Serve(absl::StrCat("127.0.0.1:", *port)).ok());
  EXPECT_FALSE(second.Serve("not an address").ok());
}

}  // namespace
}  // namespace retroinfer::common
