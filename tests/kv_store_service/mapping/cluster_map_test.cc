#include "kv_store_service/mapping/cluster_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/kv/named_segment.h"
#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

constexpr PageId kFirstPage = 1000;

class ClusterMapTest : public testing::Test {
 protected:
  explicit ClusterMapTest(const KvGeometry& geometry = kTinyGeometry)
      : geometry_(geometry), layout_(geometry, 1024), bytes_(layout_.max_pages * kPageBytes) {
    used_pages_ = WriteSegment(bytes_, geometry, 4, 1024);
    bytes_.resize(size_t{used_pages_} * kPageBytes);
  }

  absl::StatusOr<std::vector<ClusterPages>> Find(size_t head) {
    std::vector<bool> taken(bytes_.size() / kPageBytes);
    return ClusterMap(bytes_, kFirstPage, geometry_, 1024).Find(head, &taken);
  }
  ClusterEntry* entries() {
    return reinterpret_cast<ClusterEntry*>(bytes_.data() + layout_.clusters_offset);
  }
  void ExpectRefused(const std::string& message) {
    const auto found = Find(0);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(found.status().message()), HasSubstr(message));
  }

  const KvGeometry geometry_;
  const SegmentLayout layout_;
  std::vector<std::byte> bytes_;
  uint32_t used_pages_ = 0;
};

TEST_F(ClusterMapTest, FindsThePagesOfEachClusterInTheArena) {
  const auto found = Find(0);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 64u);
  const PageId first = kFirstPage + layout_.first_kv_page;
  const uint32_t pages_of_15 = kTinyGeometry.pages_of(15);
  EXPECT_EQ((*found)[0], (ClusterPages{{first, pages_of_15}, 15}));
  EXPECT_EQ((*found)[1], (ClusterPages{{first + pages_of_15, kTinyGeometry.pages_of(17)}, 17}));
  EXPECT_EQ((*found)[63], ClusterPages{}) << "an empty cluster";
  const auto last = Find(3);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ((*last)[62].pages.end(), kFirstPage + bytes_.size() / kPageBytes);
}

TEST_F(ClusterMapTest, HeadsShareNoPage) {
  const ClusterMap map(bytes_, kFirstPage, kTinyGeometry, 1024);
  ASSERT_EQ(map.num_heads(), 4u);
  std::vector<bool> taken(bytes_.size() / kPageBytes);
  for (size_t head = 0; head < map.num_heads(); ++head) EXPECT_TRUE(map.Find(head, &taken).ok());
  EXPECT_TRUE(taken.back());
  EXPECT_FALSE(map.Find(0, &taken).ok()) << "its pages are taken";
}

TEST_F(ClusterMapTest, RefusesWhatTheWorkerMayHaveWrittenMeanwhile) {
  const ClusterEntry good = entries()[5];
  entries()[5].num_tokens = std::numeric_limits<uint32_t>::max();
  ExpectRefused("cluster 5 has 4294967295 tokens");
  entries()[5] = good;
  entries()[5].num_tokens -= 1;
  ExpectRefused("sum of the clusters' tokens is 1023");
  entries()[5] = good;
  entries()[5].first_place = layout_.first_kv_page - 1;
  ExpectRefused("needs pages from");
  entries()[5].first_place = std::numeric_limits<uint32_t>::max();
  ExpectRefused("needs pages from");
  entries()[5].first_place = entries()[4].first_place;
  ExpectRefused("belongs to another cluster too");
  entries()[5] = good;
  entries()[5].radius = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused("radius");
}

// A segment whose clusters are packed: 16 tokens of a key of 64 bytes in a page.
class PackedClusterMapTest : public ClusterMapTest {
 protected:
  PackedClusterMapTest() : ClusterMapTest({2, 2, 64, kInt8PackedKv}) {}
};

TEST_F(PackedClusterMapTest, NeedsWhatItsTokensNeedAndNeighboursShareAPage) {
  EXPECT_EQ(used_pages_, layout_.max_pages);
  EXPECT_EQ(layout_.max_pages, layout_.first_kv_page + 4 * 1024 / 16);
  const auto found = Find(1);
  ASSERT_TRUE(found.ok()) << found.status();
  const PageId first = kFirstPage + layout_.first_kv_page + 1024 / 16;  // behind those of head 0
  EXPECT_EQ((*found)[0], (ClusterPages{{first, 1}, 15}));
  EXPECT_EQ((*found)[1], (ClusterPages{{first, 2}, 17}));  // the last place of one, all of another
  EXPECT_EQ((*found)[2], (ClusterPages{{first + 2, 1}, 15}));
  EXPECT_EQ((*found)[63], ClusterPages{}) << "an empty cluster";
}

TEST_F(PackedClusterMapTest, HeadsShareNoPage) {
  const ClusterMap map(bytes_, kFirstPage, geometry_, 1024);
  std::vector<bool> taken(bytes_.size() / kPageBytes);
  for (size_t head = 0; head < map.num_heads(); ++head) EXPECT_TRUE(map.Find(head, &taken).ok());
  EXPECT_EQ(std::count(taken.begin(), taken.end(), true), 4 * 1024 / 16);
  EXPECT_FALSE(map.Find(0, &taken).ok()) << "its pages are taken";
}

TEST_F(PackedClusterMapTest, RefusesClustersThatDoNotFollowEachOther) {
  const std::vector<ClusterEntry> good(entries(), entries() + 64);
  const auto restore = [&] { std::copy(good.begin(), good.end(), entries()); };
  ++entries()[5].first_place;
  ExpectRefused("cluster 5 begins at place");
  entries()[5].first_place = entries()[4].first_place;
  ExpectRefused("cluster 5 begins at place");
  restore();
  entries()[5].num_tokens -= 1;
  ExpectRefused("cluster 6 begins at place");
  restore();
  for (size_t i = 0; i < 63; ++i) entries()[i].first_place += 3;
  ExpectRefused("needs the first of a page of 16");
  restore();
  for (size_t i = 0; i < 63; ++i) entries()[i].first_place -= 16;
  ExpectRefused("needs pages from");
  restore();
  for (size_t i = 0; i < 63; ++i) entries()[i].first_place += (used_pages_ << 4);
  ExpectRefused("needs pages from");
  restore();
  for (size_t i = 0; i < 64; ++i) entries()[i].num_tokens = 0;
  ExpectRefused("sum of the clusters' tokens is 0");
}

TEST(NumClustersTest, ASegmentHasOneForSixteenTokensOfAHeadAndABlockNone) {
  EXPECT_EQ(NumClusters(kTinyGeometry, 1024), 256u);
  EXPECT_EQ(NumClusters(kTinyGeometry, 8192), 2048u);
  EXPECT_EQ(NumClusters(kTinyGeometry, kDenseBlockTokens), 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
