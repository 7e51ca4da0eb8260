// What a store does for contexts.
#include "kv_store_service/store/context_segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;

class ContextSegmentsTest : public DurableStoreTest {
 protected:
  ContextSegmentsTest() { Start(PersistMode::kOnDemand); }
  const std::vector<SegmentName> names_ = {chain_[0].name, chain_[1].name};
};

TEST_F(ContextSegmentsTest, KnowsTheAttachedModel) {
  EXPECT_EQ(store_->context_segments().attached_model()->fingerprint, "model");
  EXPECT_EQ(store_->context_segments().arena_bytes(), kArenaBytes);
  store_->leases().EndLease(token_, "test");
  EXPECT_FALSE(store_->context_segments().attached_model().has_value());
}

TEST_F(ContextSegmentsTest, WritesWhatASaveWaitsForWhenItIsCommitted) {
  Run(1, NamedChain({7}));
  ASSERT_TRUE(store_->context_segments().PinForSave(names_, absl::Now() + absl::Minutes(1)).ok());
  EXPECT_TRUE(store_->context_segments().IsReferenced(names_[0]));
  Run(2, chain_);
  WaitUntilWritten();
  EXPECT_EQ(disk_->List().size(), 2u);
  ASSERT_TRUE(store_->context_segments().PinForSave(names_, absl::InfinitePast()).ok());
  EXPECT_FALSE(store_->context_segments().IsReferenced(names_[0]));
}

TEST_F(ContextSegmentsTest, WritesWhatIsInTheArena) {
  Run(1, chain_);
  EXPECT_THAT(store_->context_segments().PagesInArena(names_), testing::Each(testing::Gt(0u)));
  int failures = 0;
  const auto failed = [&](const SegmentName&, const absl::Status&) { ++failures; };
  store_->context_segments().PersistNow(names_, failed);
  store_->context_segments().PersistNow(names_, failed);
  WaitUntilWritten();
  EXPECT_EQ(disk_->List().size(), 2u);
  EXPECT_EQ(failures, 0);
}

TEST_F(ContextSegmentsTest, DropsWhatNobodyUses) {
  Run(1, chain_);
  Reserve(2, NamedChain({1}));
  store_->context_segments().DropFromArena(names_);
  EXPECT_GT(store_->context_segments().PagesInArena(names_)[0], 0u);
  EXPECT_EQ(store_->context_segments().PagesInArena(names_)[1], 0u);
}

TEST_F(ContextSegmentsTest, PinnedSegmentsLeaveHalfOfTheArena) {
  ContextSegments::NameSet names;
  for (int text = 1; text <= 12; ++text) names.insert(NamedChain({text})[0].name);
  store_->context_segments().PinNames(names);
  for (int text = 1; text <= 12; ++text) EXPECT_EQ(Run(text, NamedChain({text})), 0u);
  uint64_t pages = 0;
  const std::vector<SegmentName> all(names.begin(), names.end());
  for (const uint64_t count : store_->context_segments().PagesInArena(all)) pages += count;
  for (int text = 20; text <= 40; ++text) EXPECT_EQ(Run(text, NamedChain({text})), 0u);
  uint64_t left = 0;
  for (const uint64_t count : store_->context_segments().PagesInArena(all)) left += count;
  EXPECT_LE(left, kArenaPages / 2);
  EXPECT_GT(left, 0u);
  EXPECT_LE(left, pages);
}

// Whoever may save can name segments that do not exist.
TEST_F(ContextSegmentsTest, SavesWaitForOnlySoManyNames) {
  std::vector<SegmentName> names(kMaxContextSegments);
  uint32_t next = 0;
  const auto hold_others = [&] {
    for (SegmentName& name : names) {
      ++next;
      std::memcpy(name.bytes.data(), &next, sizeof(next));
    }
    return store_->context_segments().PinForSave(names, absl::Now() + absl::Minutes(1));
  };
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(hold_others().ok());
  EXPECT_TRUE(absl::IsResourceExhausted(hold_others()));
  EXPECT_TRUE(store_->context_segments().IsReferenced(names.front()) == false);
  next -= kMaxContextSegments;
  ASSERT_TRUE(store_->context_segments().PinForSave(names, absl::InfinitePast()).ok());
}

TEST(ContextSegmentsAloneTest, AStoreWithoutArenaHasNoSegments) {
  StoreState state;
  ContextSegments segments(&state);
  const std::vector<SegmentIdentity> chain = NamedChain({1});
  const std::vector<SegmentName> names = {chain[0].name};
  EXPECT_EQ(segments.arena_bytes(), 0u);
  EXPECT_FALSE(segments.attached_model().has_value());
  EXPECT_THAT(segments.PagesInArena(names), ElementsAre(0));
  EXPECT_FALSE(segments.IsReferenced(names[0]));
  segments.DropFromArena(names);
}

TEST(ContextSegmentsAloneTest, ANamePinnedForASaveIsReferencedUntilThen) {
  StoreState state;
  ContextSegments segments(&state);
  const std::vector<SegmentIdentity> chain = NamedChain({1});
  const std::vector<SegmentName> names = {chain[0].name};
  ASSERT_TRUE(segments.PinForSave(names, common::SteadyNow() + absl::Hours(1)).ok());
  EXPECT_TRUE(segments.IsReferenced(names[0]));
  ASSERT_TRUE(segments.PinForSave(names, absl::InfinitePast()).ok());
  EXPECT_FALSE(segments.IsReferenced(names[0]));
}

}  // namespace
}  // namespace retroinfer::kvstore
