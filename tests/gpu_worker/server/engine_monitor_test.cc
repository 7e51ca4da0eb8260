#include "gpu_worker/server/engine_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/fake_engine.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StatisticsLine, SaysNothingWhileIdle) {
  EXPECT_FALSE(StatisticsLine({}, {}, absl::Seconds(10)).has_value());
  EngineStats later;
  later.generation_tokens = 1;
  EXPECT_TRUE(StatisticsLine({}, later, absl::Seconds(10)).has_value());
  EngineStats waiting;
  waiting.requests_waiting = 1;
  EXPECT_TRUE(StatisticsLine(waiting, waiting, absl::Seconds(10)).has_value());
}

TEST(StatisticsLine, HasRatesOfTheInterval) {
  EngineStats before;
  before.prompt_tokens = 1000;
  before.page_hits = 100;
  EngineStats now = before;
  now.requests_running = 2;
  now.requests_waiting = 1;
  now.prompt_tokens += 5000;
  now.generation_tokens += 120;
  now.page_hits += 95;
  now.page_misses += 4;
  now.page_transients += 1;
  now.dense_blocks_used = 1;
  now.dense_blocks_total = 10;
  now.meta_blocks_used = 3;
  now.meta_blocks_total = 4;
  now.store_attached = true;
  EXPECT_EQ(*StatisticsLine(before, now, absl::Seconds(10)),
            "running 2, waiting 1, prompt 500.0 tok/s, generation 12.0 tok/s, KV memory 75.0%, "
            "page hits 95.0%");
}

TEST(EngineMonitor, ReportsReadinessAndItsChanges) {
  FakeEngine engine;
  engine.SetReady(false);
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  absl::Mutex mutex;
  std::vector<bool> seen;
  {
    EngineMonitor monitor(engine, metrics, absl::Seconds(10), [&](bool ready) {
      absl::MutexLock lock(&mutex);
      seen.push_back(ready);
    });
    const auto await = [&](size_t count) {
      absl::MutexLock lock(&mutex);
      const auto reached = [&] { return seen.size() >= count; };
      return mutex.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(10));
    };
    ASSERT_TRUE(await(1));
    engine.SetReady(true);
    ASSERT_TRUE(await(2));
    engine.SetReady(false);
    ASSERT_TRUE(await(3));
  }
  EXPECT_THAT(seen, ElementsAre(false, true, false));
}

TEST(EngineMonitor, ExportsStatisticsAtEachScrape) {
  FakeEngine engine;
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  EngineMonitor monitor(engine, metrics, absl::Seconds(10), [](bool) {});
  EngineStats stats;
  stats.page_hits = 7;
  stats.slots_used = 3;
  stats.slots_total = 9;
  stats.dense_blocks_used = 1;
  stats.dense_blocks_total = 4;
  stats.device_memory_bytes[static_cast<size_t>(MemoryPurpose::kDenseKv)] = 5;
  stats.decode_host_seconds = 0.5;
  stats.busy_seconds = 0.75;
  stats.table_rows_used = 2;
  engine.SetStats(stats);
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_page_hits_total 7"));
  stats.page_hits = 10;
  engine.SetStats(stats);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_page_hits_total 10"));
  EXPECT_THAT(text, HasSubstr("retroinfer_slots_used 3"));
  EXPECT_THAT(text, HasSubstr("retroinfer_device_memory_bytes{purpose=\"dense_kv\"} 5"));
  EXPECT_THAT(text, HasSubstr("retroinfer_decode_host_seconds_total 0.5"));
  EXPECT_THAT(text, HasSubstr("retroinfer_engine_busy_seconds_total 0.75"));
  EXPECT_THAT(text, HasSubstr("retroinfer_table_rows_used 2"));
  EXPECT_THAT(text, HasSubstr("retroinfer_kv_cache_usage_ratio 0.25"));
  EXPECT_THAT(text, HasSubstr("retroinfer_requests_running 0"));
  EXPECT_THAT(text, HasSubstr("retroinfer_requests_waiting_limit 64"));
}

// The value of a metric without labels.
double ValueOf(const std::string& text, const std::string& name) {
  const size_t line = text.find("\n" + name + " ");
  return line == std::string::npos ? -1 : std::stod(text.substr(line + name.size() + 2));
}

TEST(EngineMonitor, AgesAreThoseOfTheScrape) {
  FakeEngine engine;
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  EngineMonitor monitor(engine, metrics, absl::Seconds(10), [](bool) {});
  EngineStats stats;
  stats.last_progress = absl::Now() - absl::Seconds(40);
  engine.SetStats(stats);
  EXPECT_EQ(ValueOf(metrics.Render(), "retroinfer_oldest_waiting_seconds"), 0);
  EXPECT_EQ(ValueOf(metrics.Render(), "retroinfer_seconds_since_progress"), 0) << "it is idle";
  stats.requests_waiting = 2;
  stats.requests_waiting_for_prefill = 1;
  stats.oldest_waiting = absl::Now() - absl::Seconds(30);
  engine.SetStats(stats);
  const std::string text = metrics.Render();
  EXPECT_GE(ValueOf(text, "retroinfer_oldest_waiting_seconds"), 30);
  EXPECT_GE(ValueOf(text, "retroinfer_seconds_since_progress"), 40);
  EXPECT_EQ(ValueOf(text, "retroinfer_requests_waiting"), 2);
  EXPECT_EQ(ValueOf(text, "retroinfer_requests_waiting_for_prefill"), 1);
}

}  // namespace
}  // namespace retroinfer
