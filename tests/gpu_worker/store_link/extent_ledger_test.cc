#include "gpu_worker/store_link/extent_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/prompt_text.h"

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

TEST_F(NamedExtentsTest, APartialOneIsNobodyElsesUntilTheStoreSharesItAsAWhole) {
  const auto chain = kvstore::NamedChain({11});
  Extent extent{11, 0, 6, 1024, true};
  extent.part_bytes = 4096;
  ledger_.Reserve(kvstore::NamedRequest(2, chain), {extent});
  EXPECT_EQ(ledger_.Find(2, 11)->token_begin, std::nullopt);
  EXPECT_TRUE(NamedIds().empty());
  extent.part_bytes = 0;
  ledger_.Reserve(kvstore::NamedRequest(3, chain), {extent});
  // A store that is told what sequences hold would refuse one extent in two forms.
  for (const uint64_t sequence : {2, 3}) {
    EXPECT_EQ(ledger_.Find(sequence, 11)->token_begin, 4u);
    EXPECT_EQ(ledger_.Find(sequence, 11)->extent.part_bytes, 0u);
  }
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11));
  ledger_.Release(3);
  EXPECT_THAT(NamedIds(), testing::ElementsAre(11));
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

class RowExtentsTest : public testing::Test {
 protected:
  static std::shared_ptr<const SegmentIdentity> Shared(const SegmentIdentity& identity) {
    return std::make_shared<const SegmentIdentity>(identity);
  }
  ReserveRequest Rows(uint64_t sequence, size_t offset) const {
    ReserveRequest request{.sequence_id = sequence};
    request.rows = text_.Rows(offset, 1000);
    return request;
  }
  // Saves the two blocks as extents 21 and 22.
  void Save() {
    ReserveRequest request{.sequence_id = 1};
    request.token_begin = 4 + 64;
    request.segments = {{64, block_}, {10, generated_}};
    ledger_.Reserve(request, {{21, 0, 9, 64}, {22, 9, 9, 10}});
    ledger_.Commit(1, 21, 4 + 64, 9, Shared(block_));
    ledger_.Commit(1, 22, 4 + 128, 9, Shared(generated_));
  }
  const kvstore::PromptText text_ = kvstore::PromptText::Of(1024);
  const SegmentIdentity block_ = text_.Block(64);
  const SegmentIdentity generated_ = text_.Generated(block_.name, 128, 10);
  ExtentLedger ledger_;
};

TEST_F(RowExtentsTest, HaveTheNamesThatTheirSequencesCommitted) {
  Save();
  const std::vector<Extent> extents = {{21, 0, 9, 64, true}, {22, 9, 9, 10, true, generated_.name}};
  ledger_.Reserve(Rows(2, 64), extents);
  EXPECT_EQ(ledger_.Find(2, 21)->identity->name, block_.name);
  EXPECT_EQ(ledger_.Find(2, 21)->token_begin, 4 + 64u);
  EXPECT_EQ(ledger_.Find(2, 22)->identity->name, generated_.name);
  EXPECT_EQ(ledger_.Find(2, 22)->token_begin, 4 + 128u);
  // Also when the sequences have ended.
  ledger_.Release(1);
  ledger_.Release(2);
  ledger_.Reserve(Rows(3, 64), extents);
  EXPECT_EQ(ledger_.Find(3, 22)->identity->name, generated_.name);
  EXPECT_EQ(ledger_.ReferencedSegments().size(), 2u);
}

TEST_F(RowExtentsTest, HaveNoNameThatIsNotCertain) {
  Save();
  // Another name, another place, another number of tokens, exact: not what was committed there.
  ledger_.Reserve(Rows(2, 64), {{22, 9, 9, 10, true, block_.name}});
  EXPECT_EQ(ledger_.Find(2, 22)->identity, nullptr);
  ledger_.Reserve(Rows(2, 64), {{22, 10, 9, 10, true, generated_.name}});
  EXPECT_EQ(ledger_.Find(2, 22)->identity, nullptr);
  ledger_.Reserve(Rows(2, 64), {{22, 9, 9, 11, true, generated_.name}});
  EXPECT_EQ(ledger_.Find(2, 22)->identity, nullptr);
  ledger_.Reserve(Rows(2, 64), {{22, 9, 9, 10, true}});
  EXPECT_EQ(ledger_.Find(2, 22)->identity, nullptr);
  ledger_.Reserve(Rows(2, 64), {{99, 50, 9, 10, true, generated_.name}});
  EXPECT_EQ(ledger_.Find(2, 99)->identity, nullptr);
  EXPECT_EQ(ledger_.Find(2, 99)->token_begin, 4 + 64u);
  // An extent of that number that was granted anew.
  ledger_.Release(1);
  ledger_.Reserve({.sequence_id = 4}, {{21, 0, 9, 64}});
  ledger_.Reserve(Rows(2, 64), {{21, 0, 9, 64, true}});
  EXPECT_EQ(ledger_.Find(2, 21)->identity, nullptr);
}

TEST_F(RowExtentsTest, AGeneratedSegmentOfAMainRequestHasItsOwnName) {
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 1024);
  const SegmentIdentity exact = text_.Segments(1, 1024)[0];
  ReserveRequest save{.sequence_id = 1, .segments = {{1024, generated}}};
  ledger_.Reserve(save, {{31, 0, 9, 1024}});
  ledger_.Commit(1, 31, 4, 9, Shared(generated));
  ReserveRequest main{.sequence_id = 2, .segments = {{1024, exact}}};
  ledger_.Reserve(main, {{31, 0, 9, 1024, true, generated.name}});
  EXPECT_EQ(ledger_.Find(2, 31)->identity->name, generated.name);
  ledger_.Reserve(main, {{32, 20, 9, 1024, true, generated.name}});
  EXPECT_EQ(ledger_.Find(2, 32)->identity, nullptr);
  ledger_.Reserve(main, {{33, 20, 9, 1024, true}});
  EXPECT_EQ(ledger_.Find(2, 33)->identity->name, exact.name);
  // A save that finds the generated one it wanted.
  save.sequence_id = 3;
  ledger_.Reserve(save, {{34, 40, 9, 1024, true, generated.name}});
  EXPECT_EQ(ledger_.Find(3, 34)->identity->name, generated.name);
}

}  // namespace
}  // namespace retroinfer
