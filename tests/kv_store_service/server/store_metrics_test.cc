#include "kv_store_service/server/store_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

TEST(StoreMetricsTest, ShowTheStoreAtEachScrape) {
  TemporaryFolder folder;
  KvStore store({}, StateFile(folder.path() + "/state"));
  store.leases().SetArena(*common::SealedMemory::Create("test arena", 8 << 20, 1));
  common::Metrics metrics("kv_store_service", "1", "r", "cpu");
  StoreMetrics store_metrics(&metrics, &store);
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_arena_bytes 8388608"));
  EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_worker_attached 0"));

  const std::string token =
      store.leases().Attach({kTinyGeometry, "model", 16, 64, 64, false})->token;
  ASSERT_TRUE(store.leases().ClaimDescriptors(token, 1).ok());
  ASSERT_TRUE(store.reservations().Reserve(token, 1, ReserveRequest::Unnamed(1, {1024})).ok());
  ASSERT_FALSE(store.reservations()
                   .Reserve(token, 2, ReserveRequest::Unnamed(2, std::vector<uint32_t>(100, 8192)))
                   .ok());
  std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_worker_attached 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_sequences 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_reserved_extents 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_mirror_slots 16"));
  EXPECT_THAT(text, HasSubstr("retroinfer_reservations_refused_total 1"));
  EXPECT_THAT(text, HasSubstr("retroinfer_workers_attached_total 1"));
  EXPECT_THAT(text, testing::Not(HasSubstr("retroinfer_arena_usage_ratio 0\n")));
  store.leases().EndLease(token, "test");
  text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_arena_usage_ratio 0\n"));
  EXPECT_THAT(text, HasSubstr("retroinfer_workers_attached_total 1"));
  EXPECT_THAT(text, testing::Not(HasSubstr("retroinfer_rank_"))) << "there was one";
}

TEST(StoreMetricsTest, ShowTheRanksOfAWorkerThatHasSeveral) {
  TemporaryFolder folder;
  KvStore store({}, StateFile(folder.path() + "/state"));
  store.leases().SetArena(*common::SealedMemory::Create("test arena", 8 << 20, 1));
  common::Metrics metrics("kv_store_service", "1", "r", "cpu");
  StoreMetrics store_metrics(&metrics, &store);
  const std::string token =
      store.leases().Attach({kTinyGeometry, "model", 16, 64, 64, false, 2})->token;
  ASSERT_TRUE(store.leases().ClaimDescriptors(token, 1).ok());
  std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_mirror_slots 32"));
  EXPECT_THAT(text, HasSubstr("retroinfer_rank_mirror_slots{rank=\"0\"} 16"));
  EXPECT_THAT(text, HasSubstr("retroinfer_rank_mirror_slots{rank=\"1\"} 16"));
  EXPECT_THAT(text, HasSubstr("retroinfer_rank_access_log_refused{rank=\"1\"} 0"));
  store.leases().EndLease(token, "test");
  text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_rank_mirror_slots{rank=\"1\"} 0"));
}

TEST(StoreMetricsTest, ShowTheDiskTier) {
  TemporaryFolder folder;
  DurableTierOptions options;
  options.folder = folder.path();
  options.limits.cap_bytes = 1 << 20;
  KvStore store({}, StateFile(folder.path() + "/state"));
  common::Metrics metrics("kv_store_service", "1", "r", "cpu");
  StoreMetrics store_metrics(&metrics, &store);
  // There from the start, so that a rule can tell "no tier" from "no such series".
  for (const char* const name : {"limit_bytes", "disk_bytes", "disk_free_bytes",
                                 "write_seconds_total", "restore_seconds_total"}) {
    EXPECT_THAT(metrics.Render(), HasSubstr(absl::StrCat("retroinfer_durable_", name, " 0\n")));
  }
  const auto state_is = [&](const std::string& state) {
    const std::string text = metrics.Render();
    for (const std::string name : {"off", "on", "degraded", "missing"}) {
      EXPECT_THAT(text, HasSubstr(absl::StrCat("retroinfer_durable_tier_state{state=\"", name,
                                               "\"} ", name == state ? "1" : "0", "\n")));
    }
  };
  state_is("off");
  store.NoteMissingTier(absl::InternalError("a test"));
  state_is("missing");
  store.NoteMissingTier(absl::OkStatus());
  store.SetDurableTier(
      std::make_unique<DurableTier>(options, MakeInMemorySegmentStorage(), nullptr));
  state_is("on");
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_durable_tier 1\n"));
  EXPECT_THAT(text, HasSubstr("retroinfer_durable_limit_bytes 1048576\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("retroinfer_durable_disk_bytes 0\n")));
}

}  // namespace
}  // namespace retroinfer::kvstore
