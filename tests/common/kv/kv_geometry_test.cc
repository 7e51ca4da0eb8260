#include "common/kv/kv_geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "common/kv/cluster_place.h"
#include "common/kv/segment_layout.h"

namespace retroinfer {
namespace {

constexpr KvGeometry kLlama8b{.num_layers = 32, .num_kv_heads = 8, .head_dim = 128};

TEST(KvGeometryTest, SizesOfAnEightBillionParameterModel) {
  EXPECT_TRUE(kLlama8b.Validate().ok());
  EXPECT_EQ(kLlama8b.tokens_per_page(), 4u);
  EXPECT_EQ(kLlama8b.token_bytes(), 128u * 1024);
  EXPECT_EQ(kLlama8b.pages_of(0), 0u);
  EXPECT_EQ(kLlama8b.pages_of(5), 2u);
}

TEST(KvGeometryTest, PageHoldsTwiceTheTokensAtHalfTheHeadDim) {
  KvGeometry geometry = kLlama8b;
  geometry.head_dim = 64;
  EXPECT_EQ(geometry.tokens_per_page(), 8u);
  geometry.format = kF32Kv;
  EXPECT_EQ(geometry.tokens_per_page(), 4u);
}

TEST(KvGeometryTest, RefusesWhatThePagesCannotHold) {
  KvGeometry geometry = kLlama8b;
  geometry.head_dim = 96;
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
  geometry = kLlama8b;
  geometry.num_layers = 0;
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
  geometry = kLlama8b;
  geometry.format.page_vector_bytes = 3 * 512;  // three tokens
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SegmentLayoutTest, PartsDoNotOverlapAndTheExtentSufficesForTheWorstClusters) {
  const SegmentLayout layout(kLlama8b, kPrefillSegmentTokens);
  EXPECT_EQ(layout.num_clusters, 512u);
  EXPECT_EQ(layout.clusters_offset, kPageBytes);
  EXPECT_EQ(layout.centroids_offset - layout.clusters_offset, 12u * 32 * 8 * 512);
  EXPECT_EQ(layout.value_sums_offset - layout.centroids_offset, 256u * 32 * 8 * 512);
  EXPECT_EQ(layout.order_offset - layout.value_sums_offset, 256u * 32 * 8 * 512);
  EXPECT_EQ(layout.index_end - layout.order_offset, 2u * 32 * 8 * kPrefillSegmentTokens);
  EXPECT_GE(size_t{layout.first_kv_page} * kPageBytes, layout.index_end);
  // 511 clusters of 13 tokens (4 pages, 3 places wasted) and one with the rest.
  const uint32_t rest = kPrefillSegmentTokens - 511 * 13;
  EXPECT_LE(511 * kLlama8b.pages_of(13) + kLlama8b.pages_of(rest), layout.max_pages_per_head);
}

TEST(SegmentLayoutTest, PackedClustersNeedWhatTheirTokensNeed) {
  const KvGeometry packed{32, 8, 128, kInt8PackedKv}, apart{32, 8, 128, kInt8Kv};
  for (const uint32_t num_tokens : {kDecodeSegmentTokens, kPrefillSegmentTokens}) {
    const SegmentLayout layout(packed, num_tokens);
    EXPECT_EQ(layout.max_pages_per_head, num_tokens / 8);
    EXPECT_EQ(layout.max_pages, layout.first_kv_page + 32 * 8 * num_tokens / 8);
    EXPECT_EQ(layout.first_kv_page, SegmentLayout(apart, num_tokens).first_kv_page);
    EXPECT_EQ(SegmentLayout(apart, num_tokens).max_pages_per_head,
              num_tokens / 8 + num_tokens / 16 * 7 / 8);
  }
  EXPECT_EQ(packed.places_per_page(), 8u);
  EXPECT_EQ(apart.places_per_page(), 1u);
}

TEST(ClusterPlaceTest, CountsThePagesAndTheTokensInEach) {
  const ClusterPlace whole(7, 1);
  EXPECT_EQ(whole.first_page, 7u);
  EXPECT_EQ(whole.NumPages(0, 8), 0u);
  EXPECT_EQ(whole.NumPages(17, 8), 3u);
  EXPECT_EQ(whole.NumIn(0, 17, 8), 8u);
  EXPECT_EQ(whole.NumIn(2, 17, 8), 1u);
  const ClusterPlace within(7 * 8 + 5, 8);
  EXPECT_EQ(within.first_page, 7u);
  EXPECT_EQ(within.skipped, 5u);
  for (const auto& [tokens, pages] : {std::pair{0u, 0u}, {1u, 1u}, {3u, 1u}, {4u, 2u}, {12u, 3u}}) {
    EXPECT_EQ(within.NumPages(tokens, 8), pages) << tokens;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < pages; ++i) {
      EXPECT_EQ(within.FirstIn(i), i == 0 ? 5u : 0u);
      EXPECT_LE(within.FirstIn(i) + within.NumIn(i, tokens, 8), 8u);
      sum += within.NumIn(i, tokens, 8);
    }
    EXPECT_EQ(sum, tokens);
  }
  EXPECT_EQ(ClusterPlace(UINT32_MAX, 8).NumPages(UINT32_MAX, 8), (uint64_t{7} + UINT32_MAX + 7) / 8)
      << "hostile sizes do not wrap";
}

TEST(KvGeometryTest, WindowLayersAreThereWithAWindowOrNotAtAll) {
  KvGeometry geometry = kLlama8b;
  EXPECT_FALSE(geometry.has_window_layers());
  EXPECT_EQ(geometry.num_model_layers(), 32u);
  geometry.num_window_layers = 5;
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
  geometry.window_tokens = kMaxLayerWindow;
  EXPECT_TRUE(geometry.Validate().ok());
  EXPECT_EQ(geometry.num_model_layers(), 37u);
  EXPECT_EQ(geometry.of_window_layers(),
            (KvGeometry{.num_layers = 5, .num_kv_heads = 8, .head_dim = 128}));
  geometry.window_tokens = kMaxLayerWindow + 1;
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
  geometry.window_tokens = 100;
  geometry.num_window_layers = 1025;
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
  geometry.num_window_layers = 0;
  EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvGeometryTest, KeptTokensOfWindowLayersHoldTheWindowOfTheNextToken) {
  for (const uint32_t window : {1u, 2u, 64u, 100u, 128u, 129u, 1024u}) {
    KvGeometry geometry = kLlama8b;
    geometry.num_window_layers = 1;
    geometry.window_tokens = window;
    int64_t most = 0;
    for (int64_t position = 0; position < 3000; ++position) {
      const int64_t begin = geometry.WindowBegin(position);
      ASSERT_EQ(begin % kWindowStep, 0);
      ASSERT_LE(begin, std::max<int64_t>(0, position + 1 - window));
      ASSERT_GT(begin + kWindowStep, position + 1 - window);
      most = std::max(most, position - begin);
    }
    EXPECT_EQ((most + 63) / 64, geometry.max_window_blocks()) << window;
  }
}

// Nothing moves in the segments of models without window layers.
TEST(SegmentLayoutTest, ATailLiesBetweenIndexAndPages) {
  KvGeometry geometry = kLlama8b;
  const SegmentLayout without(geometry, kDecodeSegmentTokens);
  EXPECT_EQ(without.tail_page, without.first_kv_page);
  EXPECT_EQ(without.tail_bytes, 0u);
  EXPECT_EQ(SegmentVersionOf(geometry), 2u);
  geometry.num_window_layers = 3;
  geometry.window_tokens = 128;
  const SegmentLayout with(geometry, kDecodeSegmentTokens);
  EXPECT_EQ(SegmentVersionOf(geometry), 3u);
  EXPECT_EQ(with.index_end, without.index_end);
  EXPECT_EQ(with.tail_page, without.first_kv_page);
  EXPECT_EQ(with.tail_block_bytes, size_t{3} * 8 * 16 * 2048);
  EXPECT_EQ(with.tail_bytes, 4 * with.tail_block_bytes);  // up to 127 + 127 tokens
  EXPECT_EQ(with.first_kv_page * with.page_bytes,
            without.first_kv_page * without.page_bytes + with.tail_bytes);
  EXPECT_EQ(with.max_pages - with.first_kv_page, without.max_pages - without.first_kv_page);
}

TEST(KvHeadRangeTest, FitsMemoryThatHasItsHeads) {
  KvGeometry memory = kLlama8b;
  EXPECT_TRUE(KvHeadRange{}.Fits(memory));
  EXPECT_EQ(KvHeadRange{}.Of(memory), (KvHeadRange{0, 8, 8}));
  EXPECT_EQ(KvHeadRange{}.ArenaOf(memory), memory);
  EXPECT_TRUE(KvHeadRange{}.is_all() && KvHeadRange{}.is_first());
  memory.num_kv_heads = 2;
  const KvHeadRange last{6, 2, 8};
  EXPECT_TRUE(last.Fits(memory));
  EXPECT_FALSE(last.is_all() || last.is_first());
  EXPECT_EQ(last.Of(memory), last);
  EXPECT_EQ(last.ArenaOf(memory), kLlama8b);
  for (const KvHeadRange& other :
       {KvHeadRange{7, 2, 8}, KvHeadRange{0, 1, 8}, KvHeadRange{0, 2, 1}, KvHeadRange{0, 2, 0},
        KvHeadRange{1, 0, 0}, KvHeadRange{UINT32_MAX, 2, 8}}) {
    EXPECT_FALSE(other.Fits(memory)) << other.first;
  }
}

TEST(KvHeadRangeTest, RegionsShareAnExtentOut) {
  const SegmentLayout layout(kLlama8b, kPrefillSegmentTokens);
  uint32_t end = layout.first_kv_page;
  for (uint32_t first = 0; first < 8; first += 2) {
    const KvRegion region = layout.RegionOf({first, 2, 8});
    EXPECT_EQ(region.begin, end);
    EXPECT_EQ(region.num_pages(), 32 * 2 * layout.max_pages_per_head);
    end = region.end;
  }
  EXPECT_EQ(end, layout.max_pages);
  EXPECT_EQ(layout.RegionOf({0, 8, 8}).begin, layout.first_kv_page);
  EXPECT_EQ(layout.RegionOf({0, 8, 8}).end, layout.max_pages);
}

}  // namespace
}  // namespace retroinfer
