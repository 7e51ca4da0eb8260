#include "gpu_worker/kv/extent_check.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/kv/block_layout.h"
#include "common/kv/segment_layout.h"

namespace retroinfer {
namespace {

constexpr KvGeometry kGeometry{
    .num_layers = 2, .num_kv_heads = 2, .head_dim = 64, .format = kBf16Kv};

TEST(ExtentCheckTest, AnExtentLiesInTheArenaAsAWhole) {
  EXPECT_TRUE(CheckInside({.first_page = 90, .num_pages = 10}, 100).ok());
  EXPECT_FALSE(CheckInside({.first_page = 91, .num_pages = 10}, 100).ok());
  const uint32_t largest = std::numeric_limits<uint32_t>::max();
  EXPECT_FALSE(CheckInside({.first_page = largest, .num_pages = largest}, 100).ok());
}

TEST(ExtentCheckTest, WhatIsReadHasItsPages) {
  const uint32_t block = BlockLayout(kGeometry).num_pages;
  EXPECT_TRUE(CheckHolds({.num_pages = block, .num_tokens = 64}, kGeometry).ok());
  EXPECT_TRUE(CheckHolds({.num_pages = block, .num_tokens = 1}, kGeometry).ok());
  EXPECT_FALSE(CheckHolds({.num_pages = block - 1, .num_tokens = 64}, kGeometry).ok());
  const uint32_t index = SegmentLayout(kGeometry, 1024).first_kv_page;
  EXPECT_TRUE(CheckHolds({.num_pages = index, .num_tokens = 1024}, kGeometry).ok());
  EXPECT_FALSE(CheckHolds({.num_pages = index - 1, .num_tokens = 1024}, kGeometry).ok());
  for (const uint32_t tokens : {0u, 65u, 1023u, 1u << 20}) {
    EXPECT_FALSE(CheckHolds({.num_pages = 1u << 30, .num_tokens = tokens}, kGeometry).ok());
  }
}

TEST(ExtentCheckTest, WhatIsBuiltMayTakeAllOfItsPages) {
  const uint32_t most = SegmentLayout(kGeometry, 1024).max_pages;
  const Extent extent{.num_pages = most, .num_tokens = 1024};
  EXPECT_TRUE(CheckTakes(extent, 1024, kGeometry).ok());
  EXPECT_FALSE(CheckTakes(extent, 2048, kGeometry).ok());
  EXPECT_FALSE(CheckTakes({.num_pages = most - 1, .num_tokens = 1024}, 1024, kGeometry).ok());
  EXPECT_FALSE(CheckTakes({.num_pages = most, .num_tokens = 64}, 64, kGeometry).ok());
}

}  // namespace
}  // namespace retroinfer
