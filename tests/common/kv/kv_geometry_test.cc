#include "common/kv/kv_geometry.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace retroinfer
