#include "gpu_worker/store_link/extent_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_store_service/named_chain.h"

namespace retroinfer {
namespace {

TEST(ExtentLedgerTest, FollowsASequenceFromReservationToRelease) {
  ExtentLedger ledger;
  ledger.Reserve({.sequence_id = 7}, {{1, 0, 10, 1024}, {2, 10, 10, 1024}});
  ASSERT_NE(ledger.Find(7, 2), nullptr);
  EXPECT_EQ(ledger.Find(7, 2)->token_begin, std::nullopt);
  ledger.Commit(7, 2, 1028, 6);
  EXPECT_EQ(ledger.Find(7, 2)->token_begin, 1028u);
  EXPECT_EQ(ledger.Find(7, 2)->extent.num_pages, 6u);
  EXPECT_EQ(ledger.Find(7, 1)->extent.num_pages, 10u);
  EXPECT_EQ(ledger.sequences().at(7).size(), 2u);
  ledger.Release(7);
  EXPECT_TRUE(ledger.sequences().empty());
}

TEST(ExtentLedgerTest, IgnoresWhatItDoesNotKnow) {
  ExtentLedger ledger;
  ledger.Reserve({.sequence_id = 7}, {{1, 0, 10, 1024}});
  ledger.Commit(8, 1, 4, 5);
  ledger.Commit(7, 9, 4, 5);
  ledger.Release(9);
  EXPECT_EQ(ledger.Find(8, 1), nullptr);
  EXPECT_EQ(ledger.Find(7, 9), nullptr);
  EXPECT_EQ(ledger.Find(7, 1)->extent.num_pages, 10u);
}

TEST(ExtentLedgerTest, ARepeatedReservationReplacesTheFirst) {
  ExtentLedger ledger;
  ledger.Reserve({.sequence_id = 7}, {{1, 0, 10, 1024}});
  ledger.Reserve({.sequence_id = 7}, {{5, 50, 10, 1024}});
  EXPECT_EQ(ledger.Find(7, 1), nullptr);
  EXPECT_NE(ledger.Find(7, 5), nullptr);
}

class NamedExtentsTest : public testing::Test {
 protected:
  std::vector<uint64_t> NamedIds() const {
    std::vector<uint64_t> ids;
    for (const LedgerExtent* entry : ledger_.RetainedSegments()) ids.push_back(entry->extent.id);
    for (const LedgerExtent* entry : ledger_.ReferencedSegments()) ids.push_back(entry->extent.id);
    return ids;
  }
  // Reserves 10 pages from `page` on for a segment and commits it in 6 pages.
  void Run(uint64_t sequence, uint64_t extent, PageId page) {
    const auto chain = kvstore::NamedChain({static_cast<int32_t>(extent)});
    ledger_.Reserve(kvstore::NamedRequest(sequence, chain), {{extent, page, 10, 1024}});
    ledger_.Commit(sequence, extent, 4, 6, std::make_shared<const SegmentIdentity>(chain[0]));
    ledger_.Release(sequence);
  }
  ExtentLedger ledger_;
};

TEST_F(NamedExtentsTest, OutliveTheirSequenceUntilTheirPagesAreGranted) {
  Run(1, 11, 0);
  Run(2, 12, 6);
  Run(3, 13, 20);
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11, 12, 13));
  EXPECT_TRUE(ledger_.sequences().empty());
  // Page 11 is the last one of the second.
  ledger_.Reserve({.sequence_id = 4}, {{14, 11, 5, 1024}});
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11, 13));
  ledger_.Reserve({.sequence_id = 5}, {{15, 12, 9, 1024}});
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11));
}

TEST_F(NamedExtentsTest, AreForgottenWithTheirSequenceIfTheStoreWritesIntoTheArena) {
  Run(1, 11, 0);
  ledger_.StopRetaining();
  Run(2, 12, 20);
  EXPECT_TRUE(NamedIds().empty());
}

TEST_F(NamedExtentsTest, SharedOnesAreCommittedAndListedOnce) {
  Run(1, 11, 0);
  const auto chain = kvstore::NamedChain({11, 5});
  for (const uint64_t sequence : {2, 3}) {
    ledger_.Reserve(kvstore::NamedRequest(sequence, chain),
                    {{11, 0, 6, 1024, true}, {sequence + 20, 10 * PageId(sequence), 10, 1024}});
  }
  EXPECT_EQ(ledger_.Find(2, 11)->token_begin, 4u);
  EXPECT_EQ(ledger_.Find(3, 11)->identity->name, chain[0].name);
  EXPECT_EQ(ledger_.Find(3, 23)->token_begin, std::nullopt);
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11));
  ledger_.Release(2);
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11));
  ledger_.Release(3);
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11));
}

}  // namespace
}  // namespace retroinfer
