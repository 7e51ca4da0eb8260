// What a store says of the segments in its arena, and of their clusters.
#include "kv_store_service/store/segment_listing.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

class SegmentListingTest : public DurableStoreTest {
 protected:
  SegmentListingTest() {
    reservation_ = Reserve(7, chain_);
    const ExtentRecord& extent = reservation_.extents[0];
    WriteSegment(BytesOf(extent), kTinyGeometry, kSinkTokens, 1024);
    const std::vector<SegmentToCommit> segments = {{extent.id, kSinkTokens, 1024, chain_[0]}};
    EXPECT_TRUE(store_->reservations().Commit(token_, ++call_number_, 7, segments).ok());
  }
  absl::StatusOr<SegmentClusters> Find(uint64_t extent_id,
                                       std::optional<SegmentListing::Head> head = std::nullopt) {
    return store_->listing().FindClusters(extent_id, head);
  }
  uint64_t committed() const { return reservation_.extents[0].id; }
  uint64_t reserved() const { return reservation_.extents[1].id; }

  Reservation reservation_;
};

TEST_F(SegmentListingTest, ListsExtentsWithTheirClusters) {
  const auto all = store_->listing().List(0, 10);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].record.id, committed());
  EXPECT_EQ(all[0].num_clusters, 256u);
  EXPECT_EQ(all[1].num_clusters, 0u) << "not committed";
  EXPECT_EQ(store_->listing().List(committed(), 10).size(), 1u);
  EXPECT_EQ(store_->listing().List(0, 1).size(), 1u);
}

TEST_F(SegmentListingTest, SaysHowClustersLieInPages) {
  const auto found = Find(committed());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->num_clusters, 256u);
  EXPECT_EQ(found->num_empty, 4u);
  EXPECT_EQ(found->max_tokens, 32u);
  EXPECT_TRUE(found->of_head.empty());
  const SegmentLayout layout(kTinyGeometry, 1024);
  const auto listed = store_->listing().List(0, 1);
  EXPECT_EQ(found->num_pages, listed[0].record.pages.count - layout.first_kv_page);
}

TEST_F(SegmentListingTest, GivesThePagesOfAHeadsClusters) {
  const auto found = Find(committed(), SegmentListing::Head{1, 1});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->of_head.size(), 64u);
  EXPECT_EQ(found->of_head[0].num_tokens, 15u);
  const auto listed = store_->listing().List(0, 1);
  EXPECT_EQ(found->of_head[62].pages.end(), listed[0].record.pages.end())
      << "the last cluster of the last head ends where the segment does";
}

TEST_F(SegmentListingTest, WhatHasNoClustersIsRefused) {
  EXPECT_EQ(Find(999).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Find(reserved()).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const SegmentListing::Head head : {SegmentListing::Head{2, 0}, SegmentListing::Head{0, 2}}) {
    EXPECT_EQ(Find(committed(), head).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// A worker can write to its own segments at any time.
TEST_F(SegmentListingTest, AnIndexThatWasChangedIsNotBelieved) {
  std::byte* const index =
      BytesOf(reservation_.extents[0]).data() + SegmentLayout(kTinyGeometry, 1024).clusters_offset;
  ClusterEntry entry;
  std::memcpy(&entry, index, sizeof(entry));
  entry.first_place = 0;
  std::memcpy(index, &entry, sizeof(entry));
  EXPECT_EQ(Find(committed()).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace retroinfer::kvstore
