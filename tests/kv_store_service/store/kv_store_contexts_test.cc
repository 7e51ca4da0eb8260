// What KvStore does for contexts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

class KvStoreContextsTest : public DurableStoreTest {
 protected:
  KvStoreContextsTest() { Start(PersistMode::kOnDemand); }
  const std::vector<SegmentName> names_ = {chain_[0].name, chain_[1].name};
};

TEST_F(KvStoreContextsTest, KnowsTheAttachedModel) {
  EXPECT_EQ(store_->attached_model()->fingerprint, "model");
  EXPECT_EQ(store_->arena_bytes(), kArenaBytes);
  store_->EndLease(token_, "test");
  EXPECT_FALSE(store_->attached_model().has_value());
}

TEST_F(KvStoreContextsTest, WritesWhatIsHeldWhenItIsCommitted) {
  Run(1, NamedChain({7}));
  ASSERT_TRUE(store_->Hold(names_, absl::Now() + absl::Minutes(1)).ok());
  EXPECT_TRUE(store_->IsReferenced(names_[0]));
  Run(2, chain_);
  WaitUntilWritten();
  EXPECT_EQ(disk_->List().size(), 2u);
  ASSERT_TRUE(store_->Hold(names_, absl::InfinitePast()).ok());
  EXPECT_FALSE(store_->IsReferenced(names_[0]));
}

TEST_F(KvStoreContextsTest, WritesWhatIsInTheArena) {
  Run(1, chain_);
  EXPECT_THAT(store_->PagesInArena(names_), testing::Each(testing::Gt(0u)));
  int failures = 0;
  const auto failed = [&](const SegmentName&, const absl::Status&) { ++failures; };
  store_->PersistNow(names_, failed);
  store_->PersistNow(names_, failed);
  WaitUntilWritten();
  EXPECT_EQ(disk_->List().size(), 2u);
  EXPECT_EQ(failures, 0);
}

TEST_F(KvStoreContextsTest, DropsWhatNobodyUses) {
  Run(1, chain_);
  Reserve(2, NamedChain({1}));
  store_->DropFromArena(names_);
  EXPECT_GT(store_->PagesInArena(names_)[0], 0u);
  EXPECT_EQ(store_->PagesInArena(names_)[1], 0u);
}

TEST_F(KvStoreContextsTest, PinnedSegmentsLeaveHalfOfTheArena) {
  KvStore::NameSet names;
  for (int text = 1; text <= 12; ++text) names.insert(NamedChain({text})[0].name);
  store_->PinNames(names);
  for (int text = 1; text <= 12; ++text) EXPECT_EQ(Run(text, NamedChain({text})), 0u);
  uint64_t pages = 0;
  const std::vector<SegmentName> all(names.begin(), names.end());
  for (const uint64_t count : store_->PagesInArena(all)) pages += count;
  for (int text = 20; text <= 40; ++text) EXPECT_EQ(Run(text, NamedChain({text})), 0u);
  uint64_t left = 0;
  for (const uint64_t count : store_->PagesInArena(all)) left += count;
  EXPECT_LE(left, kArenaPages / 2);
  EXPECT_GT(left, 0u);
  EXPECT_LE(left, pages);
}

// Whoever may save can name segments that do not exist.
TEST_F(KvStoreContextsTest, HoldsOnlySoManyNames) {
  std::vector<SegmentName> names(kMaxContextSegments);
  uint32_t next = 0;
  const auto hold_others = [&] {
    for (SegmentName& name : names) {
      ++next;
      std::memcpy(name.bytes.data(), &next, sizeof(next));
    }
    return store_->Hold(names, absl::Now() + absl::Minutes(1));
  };
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(hold_others().ok());
  EXPECT_TRUE(absl::IsResourceExhausted(hold_others()));
  EXPECT_TRUE(store_->IsReferenced(names.front()) == false);
  next -= kMaxContextSegments;
  ASSERT_TRUE(store_->Hold(names, absl::InfinitePast()).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
