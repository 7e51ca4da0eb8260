// What a restarted store is told of blocks and generated KV. Of segments: arena_segments_test.cc
// and prefix_reuse_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/kv_store_service/rows_in_memory.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

class ArenaDeclarationTest : public RowsInMemoryTest {
 protected:
  // A store that knows nothing of the same memory.
  SegmentsInMemory Restarted() {
    SegmentsInMemory store(bytes_, kTinyGeometry);
    store.SetFingerprint(common::FingerprintHash("model"));
    return store;
  }
  std::vector<ExtentRecord> Known(uint64_t sequence = 0) const {
    std::vector<ExtentRecord> records;
    for (const ExtentRecord* record : store_.directory().List(0, 1000)) {
      records.push_back(
          {record->id, record->pages, sequence, record->reserved_tokens, record->token_begin});
    }
    return records;
  }
  const PromptText text_ = PromptText::Of(2048);
};

TEST_F(ArenaDeclarationTest, NamedBlocksAndGeneratedKvAreFoundAgain) {
  const SegmentIdentity block = text_.Block(0);
  const SegmentIdentity generated = text_.Generated(block.name, 64, 64);
  const SegmentIdentity last = text_.Generated(generated.name, 128, 5);
  Save({block, generated, last});
  const std::vector<ExtentRecord> known = Known();
  SegmentsInMemory store = Restarted();
  ASSERT_TRUE(
      store.Declare({{{known[0], block, true}, {known[1], generated}, {known[2], last}}, {}}).ok());
  const auto rows = store.Reserve(RowsRequest(2, text_.Rows(0, 1000)));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->extents.size(), 3u);
  EXPECT_EQ(rows->extents[2].key->identity.name, last.name);
}

TEST_F(ArenaDeclarationTest, AGeneratedNameMustFollowFromHowItWasMade) {
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 64);
  Save({generated});
  DeclaredSegment declared{Known()[0], generated, true};
  declared.identity.provenance->sources = common::SaltHash("other");
  EXPECT_THAT(std::string(Restarted().Declare({{declared}, {}}).message()), HasSubstr("name"));
  declared.identity.provenance.reset();
  EXPECT_FALSE(Restarted().Declare({{declared}, {}}).ok());
}

TEST_F(ArenaDeclarationTest, BlocksOfASequenceAreTakenOverReservedOrCommitted) {
  const ReserveRequest request = ChainRequest(1, {text_.Block(0), text_.Block(64)});
  const Reservation reservation = Reserve(request);
  std::vector<ExtentRecord> extents = Known(1);
  {
    SegmentsInMemory store = Restarted();
    ASSERT_TRUE(store.Declare({{}, {{1, extents, 0}}}).ok());
    EXPECT_EQ(store.allocator().free_pages(), store_.allocator().free_pages());
  }
  ASSERT_TRUE(Commit(request, reservation).ok());
  extents = Known(1);
  {
    SegmentsInMemory store = Restarted();
    ASSERT_TRUE(store.Declare({{}, {{1, extents, 0}}}).ok());
    EXPECT_EQ(store.directory().num_committed(), 2u);
  }
  extents[0].pages.count -= 1;
  EXPECT_FALSE(Restarted().Declare({{}, {{1, extents, 0}}}).ok());
}

// A worker that took rows which an earlier worker had saved does not know their names.
TEST_F(ArenaDeclarationTest, SequencesShareWhatTheyFoundCachedAlsoWithoutItsName) {
  Save({text_.Block(0), text_.Block(64)});
  const std::vector<ExtentRecord> known = Known();
  SegmentsInMemory store = Restarted();
  ASSERT_TRUE(store.Declare({{}, {{1, known, 2}, {2, {known[0]}, 1}}}).ok());
  EXPECT_EQ(store.directory().FindExtent(known[0].id)->references, 2u);
  EXPECT_EQ(store.directory().num_named(), 0u);
  // The rows are granted again, as they were.
  const auto again = store.Reserve(RowsRequest(1, text_.Rows(0, 1000)));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->num_cached, 2u);
  EXPECT_EQ(store.Release(1), known[1].pages.count);
  EXPECT_EQ(store.Release(2), known[0].pages.count);
  EXPECT_EQ(store.allocator().free_pages(), store.allocator().num_pages());
}

TEST_F(ArenaDeclarationTest, WhatASequenceReservedIsNotShared) {
  Save({text_.Block(0)});
  const std::vector<ExtentRecord> known = Known();
  SegmentsInMemory store = Restarted();
  EXPECT_FALSE(store.Declare({{}, {{1, known, 1}, {2, known, 0}}}).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
