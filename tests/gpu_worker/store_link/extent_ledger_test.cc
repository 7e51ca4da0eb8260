#include "gpu_worker/store_link/extent_ledger.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(ExtentLedgerTest, FollowsASequenceFromReservationToRelease) {
  ExtentLedger ledger;
  ledger.Reserve(7, {{1, 0, 10, 1024}, {2, 10, 10, 1024}});
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
  ledger.Reserve(7, {{1, 0, 10, 1024}});
  ledger.Commit(8, 1, 4, 5);
  ledger.Commit(7, 9, 4, 5);
  ledger.Release(9);
  EXPECT_EQ(ledger.Find(8, 1), nullptr);
  EXPECT_EQ(ledger.Find(7, 9), nullptr);
  EXPECT_EQ(ledger.Find(7, 1)->extent.num_pages, 10u);
}

TEST(ExtentLedgerTest, ARepeatedReservationReplacesTheFirst) {
  ExtentLedger ledger;
  ledger.Reserve(7, {{1, 0, 10, 1024}});
  ledger.Reserve(7, {{5, 50, 10, 1024}});
  EXPECT_EQ(ledger.Find(7, 1), nullptr);
  EXPECT_NE(ledger.Find(7, 5), nullptr);
}

}  // namespace
}  // namespace retroinfer
