// The parts of a store together: what it says of itself, without a disk and with one.
#include "kv_store_service/store/kv_store.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

TEST(KvStoreTest, AStoreThatStartsHasNothingAndSaysSo) {
  TemporaryFolder folder;
  KvStore store({}, StateFile(folder.path() + "/state"));
  EXPECT_EQ(store.tier(), nullptr);
  EXPECT_TRUE(store.missing_tier().ok());
  EXPECT_FALSE(store.ListDurable().has_value());
  EXPECT_FALSE(store.leases().data_plane_rounds().has_value());
  const StoreStats stats = store.stats();
  EXPECT_EQ(stats.arena_pages, 0u);
  EXPECT_FALSE(stats.durable.has_value());
  EXPECT_FALSE(stats.durable_missing);
}

TEST(KvStoreTest, SaysThatItsDiskIsMissing) {
  TemporaryFolder folder;
  KvStore store({}, StateFile(folder.path() + "/state"));
  store.NoteMissingTier(absl::UnavailableError("locked by another store"));
  EXPECT_TRUE(absl::IsUnavailable(store.missing_tier()));
  EXPECT_TRUE(store.stats().durable_missing);
}

class KvStoreStatsTest : public DurableStoreTest {};

TEST_F(KvStoreStatsTest, CountersOutliveLeasesAndGeometries) {
  Run(1, chain_);
  WaitUntilWritten();
  ASSERT_TRUE(AwaitNothingIsHeld());
  Run(2, chain_);
  const uint64_t hits = store_->stats().prefix.hits_tokens;
  EXPECT_EQ(hits, 2048u);
  store_->leases().EndLease(token_, "test");
  Attach("model", /*num_layers=*/1);
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.prefix.hits_tokens, hits);
  EXPECT_EQ(stats.segments_committed, 2u);
  EXPECT_EQ(stats.workers_attached, 2u);
  EXPECT_EQ(stats.committed_segments, 0u) << "another geometry empties the arena";
  EXPECT_EQ(stats.free_pages, stats.arena_pages);
  EXPECT_EQ(store_->ListDurable()->size(), 2u);
}

}  // namespace
}  // namespace retroinfer::kvstore
