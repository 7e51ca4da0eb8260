// What requests find in the arena besides exact segments by their names (prefix_reuse_test.cc):
// blocks, generated KV, rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/kv/block_layout.h"
#include "tests/kv_store_service/rows_in_memory.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ArenaLookupTest : public RowsInMemoryTest {
 protected:
  std::vector<SegmentIdentity> Blocks(size_t offset, size_t count, size_t last = 64) const {
    std::vector<SegmentIdentity> chain;
    for (size_t i = 0; i < count; ++i) {
      chain.push_back(text_.Block(offset + 64 * i, i + 1 == count ? last : 64));
    }
    return chain;
  }
  // A request of the main kind for the text's segments of 1024 tokens.
  ReserveRequest MainRequest(uint64_t sequence, size_t count) const {
    ReserveRequest request = ChainRequest(sequence, text_.Segments(count, 1024));
    request.made_by = MadeBy("wave");
    for (size_t i = 0; i < count; ++i) request.segments[i].text = text_.TextAt(1024 * (i + 1));
    return request;
  }
  const PromptText text_ = PromptText::Of(4096);
};

TEST_F(ArenaLookupTest, ABlockTakesThePagesOfItsImageAndStays) {
  const ReserveRequest request = ChainRequest(1, Blocks(64, 2, 7), 64);
  const Reservation reservation = Reserve(request);
  ASSERT_EQ(reservation.extents.size(), 2u);
  const uint32_t num_pages = BlockLayout(kTinyGeometry).num_pages;
  EXPECT_EQ(reservation.extents[0].pages.count, num_pages);
  EXPECT_EQ(reservation.extents[1].pages.count, num_pages);
  ASSERT_TRUE(Commit(request, reservation).ok());
  EXPECT_EQ(store_.num_clusters(), 0u);
  EXPECT_EQ(store_.directory().named_pages(), 2 * num_pages);
  EXPECT_EQ(store_.Release(1), 0u);
  EXPECT_EQ(Save(Blocks(64, 2, 7), 64), 2u);
  EXPECT_THAT(Rows(RowsRequest(2, text_.Rows(64, 500))), ElementsAre(64, 7));
}

TEST_F(ArenaLookupTest, ABlockIsCommittedOnlyAsWhatItIs) {
  const ReserveRequest request = ChainRequest(1, Blocks(64, 1), 64);
  const Reservation reservation = Reserve(request);
  const ExtentRecord& extent = reservation.extents[0];
  const auto commit = [&](uint64_t begin, uint32_t tokens, SegmentIdentity identity) {
    return store_
        .Commit(1, std::vector<SegmentToCommit>{{extent.id, begin, tokens, std::move(identity)}})
        .status()
        .code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(commit(68, 64, text_.Block(64)), kInvalid);  // no image yet
  const auto bytes = std::span(bytes_).subspan(size_t{extent.pages.first} * kPageBytes,
                                               size_t{extent.pages.count} * kPageBytes);
  WriteBlock(bytes, kTinyGeometry, 68, 64);
  EXPECT_EQ(commit(69, 64, text_.Block(64)), kInvalid);
  EXPECT_EQ(commit(68, 63, text_.Block(64, 63)), kInvalid);
  EXPECT_EQ(commit(132, 64, text_.Block(64)), kInvalid);  // not that of the header
  SegmentIdentity forged = text_.Block(64);
  forged.provenance = common::Provenance{};
  EXPECT_EQ(commit(68, 64, forged), kInvalid);
  EXPECT_EQ(commit(68, 64, text_.Block(64)), absl::StatusCode::kOk);
}

TEST_F(ArenaLookupTest, RowsAreSharedUntilTheRelease) {
  Save(Blocks(0, 3));
  const Reservation rows = Reserve(RowsRequest(2, text_.Rows(0, 1000)));
  ASSERT_EQ(rows.extents.size(), 3u);
  EXPECT_EQ(rows.num_cached, 3u);
  EXPECT_EQ(store_.directory().unreferenced_pages(), 0u);
  // The same again, as after a lost answer; something else is refused.
  EXPECT_EQ(Reserve(RowsRequest(2, text_.Rows(0, 1000))).extents.size(), 3u);
  EXPECT_EQ(store_.Reserve(RowsRequest(2, text_.Rows(64, 1000))).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_.Release(2), 0u);
  EXPECT_EQ(store_.directory().unreferenced_pages(), store_.directory().named_pages());
  EXPECT_EQ(store_.counters().rows_queries_tokens, 999u);
  EXPECT_EQ(store_.counters().rows_hits_tokens, 192u);
  EXPECT_EQ(store_.counters().queries_tokens, 192u);  // of the save
}

TEST_F(ArenaLookupTest, RowsOfAnotherModelAreNotFound) {
  Save(Blocks(0, 3));
  Save({text_.Generated(text_.TextAt(192), 192, 20)}, 192);
  store_.SetFingerprint(common::FingerprintHash("another model"));
  EXPECT_THAT(Rows(RowsRequest(2, text_.Rows(0, 1000))), IsEmpty());
  store_.SetFingerprint(common::FingerprintHash("model"));
  EXPECT_THAT(Rows(RowsRequest(2, text_.Rows(0, 1000))), ElementsAre(64, 64, 64, -20));
}

TEST_F(ArenaLookupTest, RowsWaitForWhatIsBeingSaved) {
  Save(Blocks(0, 1));
  const SegmentIdentity full = text_.Block(64);
  const SegmentIdentity generated = text_.Generated(full.name, 128, 64);
  const SegmentIdentity last = text_.Generated(generated.name, 192, 9);
  ReserveRequest save = ChainRequest(7, {full, generated, last}, 64);
  // Only names, as the first message of a link has them.
  for (SegmentWanted& segment : save.segments) segment.identity->token_ids.clear();
  const Reservation reservation = Reserve(save);
  const ReserveRequest rows = RowsRequest(8, text_.Rows(0, 1000));
  EXPECT_EQ(ReasonOf(rows), kSegmentInProgressReason);
  EXPECT_EQ(ReasonOf(RowsRequest(8, text_.Rows(192, 1000))), "");  // not behind exact KV
  RowsWanted behind = text_.Rows(128, 1000);
  behind.generated = full.name;  // as if that had been generated
  EXPECT_EQ(ReasonOf(RowsRequest(9, behind)), kSegmentInProgressReason);
  ReserveRequest cached_only = rows;
  cached_only.cached_only = true;
  EXPECT_THAT(Rows(cached_only), ElementsAre(64));
  EXPECT_EQ(ReasonOf(rows, /*compute_anyway=*/true), "");
  store_.Release(8);
  // Not for what is too long, or another text.
  EXPECT_THAT(Rows(RowsRequest(8, text_.Rows(0, 128))), ElementsAre(64));
  EXPECT_THAT(Rows(RowsRequest(8, text_.Branch(70, 512, 5).Rows(0, 500))), ElementsAre(64));
  save = ChainRequest(7, {full, generated, last}, 64);
  ASSERT_TRUE(Commit(save, reservation).ok());
  EXPECT_THAT(Rows(rows), ElementsAre(64, 64, -64, -9));
}

TEST_F(ArenaLookupTest, NobodyWaitsForASaveThatWasGivenUp) {
  const ReserveRequest save = ChainRequest(7, {text_.Generated(text_.TextAt(0), 0, 64)});
  const ReserveRequest rows = RowsRequest(8, text_.Rows(0, 1000));
  Reserve(save);
  EXPECT_EQ(ReasonOf(rows), kSegmentInProgressReason);
  store_.Release(7);
  EXPECT_THAT(Rows(rows), IsEmpty());
  const Reservation again = Reserve(save);
  const std::vector<SegmentToCommit> wrong = {{again.extents[0].id, 5, 64, std::nullopt}};
  EXPECT_FALSE(store_.Commit(7, wrong).ok());
  EXPECT_THAT(Rows(rows), IsEmpty());
}

TEST_F(ArenaLookupTest, OnlyTheNewestOfManyChildrenAreLookedAt) {
  constexpr size_t kMany = SegmentDirectory::kChildrenMax + 10;
  std::vector<SegmentIdentity> ways;
  for (size_t i = 0; i < kMany; ++i) {
    ways.push_back(text_.Generated(text_.TextAt(0), 0, 64, "wave", std::to_string(i)));
    Save({ways.back()});
  }
  const Reservation found = Reserve(RowsRequest(2, text_.Rows(0, 1000)));
  ASSERT_EQ(found.extents.size(), 1u);
  const auto newest = std::span(ways).last(SegmentDirectory::kChildrenMax);
  EXPECT_EQ(found.extents[0].key->identity.name,
            std::ranges::min(newest, {}, [](const SegmentIdentity& way) {
              return way.provenance->sources;
            }).name);
}

TEST_F(ArenaLookupTest, AMainRequestSharesGeneratedSegmentsBehindExactOnes) {
  const auto chain = text_.Segments(3, 1024);
  Save({chain[0]});
  const SegmentIdentity second = text_.Generated(text_.TextAt(1024), 1024, 1024);
  Save({second}, 1024);
  const SegmentIdentity third = text_.Generated(second.name, 2048, 1024);
  Save({third}, 2048);
  Save({text_.Generated(text_.TextAt(2048), 2048, 1024)}, 2048);  // of another lineage
  const Reservation main = Reserve(MainRequest(1, 4));
  ASSERT_EQ(main.num_cached, 3u);
  EXPECT_EQ(main.extents[0].key->identity.name, chain[0].name);
  EXPECT_EQ(main.extents[1].key->identity.name, second.name);
  EXPECT_EQ(main.extents[2].key->identity.name, third.name);
  // What this sequence computes behind generated KV is no exact segment: nobody waits for it.
  const Reservation other = Reserve(MainRequest(2, 4));
  EXPECT_EQ(other.num_cached, 3u);
  EXPECT_EQ(store_.counters().hits_tokens, 2 * 3072u);
}

TEST_F(ArenaLookupTest, GeneratedKvComesBeforeExactKvOfTheSameText) {
  const auto chain = text_.Segments(2, 1024);
  Save(chain);
  const SegmentIdentity generated = text_.Generated(text_.TextAt(1024), 1024, 1024);
  const ReserveRequest save = ChainRequest(7, {generated}, 1024);
  const Reservation reservation = Reserve(save);
  // It is waited for although the exact one is there.
  EXPECT_EQ(ReasonOf(MainRequest(1, 2)), kSegmentInProgressReason);
  ReserveRequest exact = MainRequest(2, 2);
  exact.made_by.reset();
  EXPECT_EQ(Reserve(exact).num_cached, 2u);
  ASSERT_TRUE(Commit(save, reservation).ok());
  const Reservation main = Reserve(MainRequest(1, 2));
  ASSERT_EQ(main.num_cached, 2u);
  EXPECT_EQ(main.extents[1].key->identity.name, generated.name);
}

TEST_F(ArenaLookupTest, RowsDoNotWaitForTheSequenceThatReadsThem) {
  const ReserveRequest main = ChainRequest(5, text_.Segments(1, 1024));
  Reserve(main);
  ReserveRequest rows = RowsRequest(6, text_.Rows(0, 2000));
  rows.rows->segments = {{4, 1024, main.segments[0].identity->name}};
  EXPECT_EQ(ReasonOf(rows), kSegmentInProgressReason);
  rows.rows->sequence_id = 5;
  EXPECT_THAT(Rows(rows), IsEmpty());
}

TEST_F(ArenaLookupTest, AMainRequestThatDoesNotWantGeneratedKvGetsNone) {
  Save({text_.Generated(text_.TextAt(0), 0, 1024)});
  ReserveRequest request = MainRequest(1, 2);
  request.made_by.reset();
  EXPECT_EQ(Reserve(request).num_cached, 0u);
  store_.Release(1);
  request.made_by = MadeBy("full");
  EXPECT_EQ(Reserve(request).num_cached, 0u);
  store_.Release(1);
  request.made_by = MadeBy("wave");
  EXPECT_EQ(Reserve(request).num_cached, 1u);
}

TEST_F(ArenaLookupTest, GeneratedSegmentsAreSharedAfterTheirTokensWereCompared) {
  Save({text_.Generated(text_.TextAt(0), 0, 1024)});
  ReserveRequest request = MainRequest(1, 2);
  for (SegmentWanted& segment : request.segments) segment.identity->token_ids.clear();
  EXPECT_EQ(Reserve(request).num_to_compare, 1u);
  EXPECT_EQ(store_.directory().num_sequences(), 0u);
  request.segments[0].identity = MainRequest(1, 1).segments[0].identity;
  EXPECT_EQ(Reserve(request).num_cached, 1u);
  store_.Release(1);
  request.segments[0].identity->token_ids[3] ^= 1;
  EXPECT_EQ(Reserve(request).num_cached, 0u);
}

TEST_F(ArenaLookupTest, AnExactSegmentBehindGeneratedKvIsNotShared) {
  const auto chain = text_.Segments(2, 1024);
  Save(chain);
  Save({text_.Generated(text_.TextAt(0), 0, 1024)});
  ASSERT_TRUE(store_.EvictNamed(chain[0].name));
  EXPECT_EQ(Reserve(MainRequest(1, 2)).num_cached, 1u);
}

TEST_F(ArenaLookupTest, AMainRequestWaitsForAGeneratedSegmentThatIsBeingCommitted) {
  const ReserveRequest save = ChainRequest(7, {text_.Generated(text_.TextAt(0), 0, 1024)});
  const Reservation reservation = Reserve(save);
  EXPECT_EQ(ReasonOf(MainRequest(1, 2)), kSegmentInProgressReason);
  ASSERT_TRUE(Commit(save, reservation).ok());
  EXPECT_EQ(Reserve(MainRequest(1, 2)).num_cached, 1u);
}

TEST_F(ArenaLookupTest, WhatIsEvictedIsNoChildAnyMore) {
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 64);
  Save({generated});
  Save({text_.Block(0, 10)});
  EXPECT_THAT(Rows(RowsRequest(2, text_.Rows(0, 1000))), ElementsAre(-64));
  ASSERT_TRUE(store_.EvictNamed(generated.name));
  EXPECT_THAT(Rows(RowsRequest(2, text_.Rows(0, 1000))), ElementsAre(10));
  ASSERT_TRUE(store_.EvictNamed(text_.TextAt(10)));
  EXPECT_THAT(Rows(RowsRequest(2, text_.Rows(0, 1000))), IsEmpty());
}

}  // namespace
}  // namespace retroinfer::kvstore
