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

TEST_F(SegmentClaimTest, WhatNeedsNoExtentsTakesOnlyWhatIsThere) {
  const auto request = ClaimSegments(sequence_, {});
  ASSERT_TRUE(request.has_value());
  EXPECT_TRUE(request->cached_only);
  EXPECT_EQ(request->segments.size(), 3u);
  sequence_.prefix = {};
  EXPECT_FALSE(ClaimSegments(sequence_, {}).has_value());
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
  for (size_t i = 0; i < 4; ++i) extents[i].id = 10 + i;
  ASSERT_TRUE(TakeExtents(extents, 100, sequence_).ok());
  const CommittedSegment named = CommitOf(sequence_, 1, 1028);
  EXPECT_EQ(named.extent_id, 11u);
  EXPECT_EQ(named.token_begin, 1028u);
  EXPECT_EQ(named.identity->name, sequence_.prefix.names[1]);
  EXPECT_FALSE(CommitOf(sequence_, 3, 3076).identity.has_value());
}

}  // namespace
}  // namespace retroinfer
