#include "gpu_worker/engine/segment_claim.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

class SegmentClaimTest : public testing::Test {
 protected:
  // Three prompt segments of 1024 tokens.
  SegmentClaimTest() : prompt_(3200, 7) {
    sequence_.sequence_id = 5;
    sequence_.prompt = prompt_;
    sequence_.prefix = NamePrefix(prompt_, 2048, "model", "salt");
    sequence_.lineage = KvLineage(sequence_.prefix, sequence_.prompt, std::nullopt);
    sequence_.lineage.SetCached({}, 0);
  }

  std::vector<int32_t> prompt_;
  SequenceKv sequence_;
};

TEST_F(SegmentClaimTest, SegmentsOfThePromptAreWantedByNameThoseOfGenerationWithout) {
  const auto request = ClaimSegments(sequence_, {.segment_tokens = {1024, 1024, 1024, 1024}});
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->sequence_id, 5u);
  EXPECT_FALSE(request->cached_only);
  ASSERT_EQ(request->segments.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(request->segments[i].identity->name, sequence_.prefix.names[i]);
  }
  EXPECT_FALSE(request->segments[3].identity.has_value());
}

TEST_F(SegmentClaimTest, APromptThatIsMeasuredLooksForNothingAndNamesWhatItCommits) {
  sequence_.reads_whole = true;
  const std::optional<ReserveRequest> request =
      ClaimSegments(sequence_, {.segment_tokens = {1024, 1024, 1024}});
  ASSERT_TRUE(request.has_value());
  for (const SegmentWanted& wanted : request->segments) EXPECT_FALSE(wanted.identity.has_value());
  sequence_.extents = {{.num_tokens = 1024}};
  sequence_.lineage.SetCached({}, 0);
  EXPECT_TRUE(CommitOf(sequence_, 0, kSinkTokens).identity.has_value());
}

TEST_F(SegmentClaimTest, WhatNeedsNoExtentsAsksForRowsAlone) {
  EXPECT_FALSE(ClaimSegments(sequence_, {}).has_value());
  const auto request = ClaimRows(sequence_, 9);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->sequence_id, 9u);
  EXPECT_EQ(request->rows->sequence_id, 5u);
  EXPECT_TRUE(request->segments.empty());
  EXPECT_EQ(request->rows->token_begin, 4u);
  EXPECT_FALSE(request->rows->generated.has_value());
  EXPECT_EQ(request->rows->texts, sequence_.prefix.texts);
  EXPECT_EQ(request->rows->segments.size(), 3u);
  // The prompt's last token is computed.
  EXPECT_EQ(request->rows->token_ids.size(), prompt_.size() - 4 - 1);
}

TEST_F(SegmentClaimTest, AnAnswerThatGrowsHoldsItsNewExtentsInANameOfTheirOwn) {
  ASSERT_TRUE(TakeExtents(std::vector<Extent>(4), 100, sequence_).ok());
  std::vector<Extent> more(2);
  more[1].first_page = 90;
  more[1].num_pages = 10;
  ASSERT_TRUE(TakeGrowth(more, 2, 77, 100, sequence_).ok());
  ASSERT_TRUE(TakeGrowth(std::vector<Extent>(1), 1, 78, 100, sequence_).ok());
  EXPECT_EQ(sequence_.extents.size(), 7u);
  EXPECT_EQ(sequence_.HolderOf(0), 5u);
  EXPECT_EQ(sequence_.HolderOf(3), 5u);
  EXPECT_EQ(sequence_.HolderOf(4), 77u);
  EXPECT_EQ(sequence_.HolderOf(5), 77u);
  EXPECT_EQ(sequence_.HolderOf(6), 78u);
}

// The answer comes from another process.
TEST_F(SegmentClaimTest, GrowthThatWasNotAskedForIsRefused) {
  std::vector<Extent> outside(1);
  outside[0].first_page = 95;
  outside[0].num_pages = 6;
  EXPECT_EQ(TakeGrowth(outside, 1, 77, 100, sequence_).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(TakeGrowth(std::vector<Extent>(2), 1, 77, 100, sequence_).code(),
            absl::StatusCode::kInternal);
  EXPECT_TRUE(sequence_.extents.empty() && sequence_.growths.empty());
}

TEST_F(SegmentClaimTest, RowsAreAskedForBehindTheSharedSegments) {
  std::vector<Extent> extents(4);
  for (Extent& extent : extents) extent.num_tokens = 1024;
  extents[0].cached = true;
  extents[0].generated = common::SaltHash("a name");
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  const auto request = ClaimRows(sequence_, 9);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->rows->token_begin, 1028u);
  EXPECT_EQ(request->rows->generated, extents[0].generated);
  EXPECT_EQ(request->rows->texts.front(), sequence_.prefix.texts[16]);
  ASSERT_EQ(request->rows->segments.size(), 2u);
  EXPECT_EQ(request->rows->segments[0].token_begin, 1028u);
  EXPECT_EQ(request->rows->token_ids.size(), prompt_.size() - 1028 - 1);
}

// Where given tokens follow, nobody asks what the head's last row gives. But a segment that is
// built of its rows is built by a prompt that is read.
TEST_F(SegmentClaimTest, AllOfAHeadIsAskedForIfItsSegmentsAreThere) {
  sequence_.given_tokens = 3;
  std::vector<Extent> extents(sequence_.prefix.names.size() + 1);
  for (Extent& extent : extents) extent = {.num_tokens = 1024, .cached = true};
  extents.back().cached = false;
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  const auto all = ClaimRows(sequence_, 9);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->rows->token_begin + all->rows->token_ids.size(), prompt_.size());
  extents[extents.size() - 2].cached = false;
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  const auto not_all = ClaimRows(sequence_, 9);
  ASSERT_TRUE(not_all.has_value());
  EXPECT_EQ(not_all->rows->token_begin + not_all->rows->token_ids.size(), prompt_.size() - 1);
}

TEST_F(SegmentClaimTest, APromptWithoutABlockAsksForNoRows) {
  prompt_.resize(4 + 64);
  sequence_.prompt = prompt_;
  sequence_.prefix = NamePrefix(prompt_, 2048, "model", "salt");
  EXPECT_FALSE(ClaimRows(sequence_, 9).has_value());
  prompt_.resize(4 + 65);
  sequence_.prompt = prompt_;
  sequence_.prefix = NamePrefix(prompt_, 2048, "model", "salt");
  EXPECT_TRUE(ClaimRows(sequence_, 9).has_value());
}

TEST_F(SegmentClaimTest, RowsFollowTheSharedSegments) {
  const KvGeometry geometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .format = kBf16Kv};
  std::vector<Extent> extents(3);
  for (Extent& extent : extents) extent.num_tokens = 1024;
  extents[0].cached = true;
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  std::vector<Extent> rows(2, {.num_pages = 40, .num_tokens = 64, .cached = true});
  rows[1].num_tokens = 30;
  ASSERT_TRUE(TakeRows(rows, 100, geometry, sequence_).ok());
  EXPECT_EQ(sequence_.num_cached_segments, 1u);
  EXPECT_EQ(sequence_.shared_end, 1028);
  EXPECT_EQ(sequence_.cached_end, 1028 + 94);
  ASSERT_EQ(sequence_.cached.size(), 3u);
  EXPECT_EQ(sequence_.cached[1].name, sequence_.prefix.texts[17]);
}

TEST_F(SegmentClaimTest, RowsThatCannotBeAreRefused) {
  const KvGeometry geometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .format = kBf16Kv};
  const auto take = [&](const Extent& extent) {
    return TakeRows({extent}, 100, geometry, sequence_).code();
  };
  const auto internal = absl::StatusCode::kInternal;
  EXPECT_EQ(take({.first_page = 90, .num_pages = 40, .num_tokens = 64}), internal);
  EXPECT_EQ(take({.num_pages = 3, .num_tokens = 64}), internal);   // too few pages
  EXPECT_EQ(take({.num_pages = 40, .num_tokens = 65}), internal);  // neither block nor segment
  EXPECT_EQ(take({.num_pages = 40, .num_tokens = 0}), internal);
  EXPECT_EQ(take({.num_pages = 99, .num_tokens = 4096}), internal);  // behind the prompt
  EXPECT_TRUE(sequence_.cached.empty());
}

TEST_F(SegmentClaimTest, TheLeadingCachedExtentsCount) {
  std::vector<Extent> extents(4);
  for (Extent& extent : extents) extent.num_tokens = 1024;
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  EXPECT_EQ(sequence_.num_cached_segments, 0u);
  EXPECT_EQ(sequence_.cached_tokens(), 0);
  extents[0].cached = extents[1].cached = extents[3].cached = true;
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  EXPECT_EQ(sequence_.num_cached_segments, 2u);
  EXPECT_EQ(sequence_.cached_end, 4 + 2048);
  EXPECT_EQ(sequence_.extents.size(), 4u);
}

TEST_F(SegmentClaimTest, AnExtentOutsideOfTheArenaIsRefused) {
  std::vector<Extent> extents(1);
  extents[0].first_page = UINT32_MAX;
  extents[0].num_pages = 10;
  EXPECT_EQ(TakeExtents(extents, 100, sequence_).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(sequence_.extents.empty());
}

TEST_F(SegmentClaimTest, OnlySegmentsOfThePromptAreCommittedWithANameForOthers) {
  std::vector<Extent> extents(4);
  for (size_t i = 0; i < 4; ++i) extents[i] = {.id = 10 + i, .num_tokens = 1024};
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  const CommittedSegment named = CommitOf(sequence_, 1, 1028);
  EXPECT_EQ(named.extent_id, 11u);
  EXPECT_EQ(named.token_begin, 1028u);
  EXPECT_EQ(named.identity->name, sequence_.prefix.names[1]);
  EXPECT_FALSE(CommitOf(sequence_, 3, 3076).identity.has_value());
}

}  // namespace
}  // namespace retroinfer
