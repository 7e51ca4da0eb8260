#include "text/constraint/mask_cache.h"

#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

std::shared_ptr<const Mask> MaskOfWord(uint32_t word) {
  return std::make_shared<const Mask>(Mask(100, word));
}

TEST(MaskCacheTest, TheLeastRecentlyUsedGoes) {
  MaskCache cache(1200);  // two masks of 400 bytes and what is around them
  cache.Insert(1, MaskOfWord(1));
  cache.Insert(2, MaskOfWord(2));
  ASSERT_NE(cache.Find(1), nullptr);
  cache.Insert(3, MaskOfWord(3));
  EXPECT_EQ(cache.Find(2), nullptr);
  ASSERT_NE(cache.Find(1), nullptr);
  EXPECT_EQ(cache.Find(1)->front(), 1u);
  EXPECT_EQ(cache.Find(3)->front(), 3u);
  EXPECT_LE(cache.memory_bytes(), 1200u);
  cache.Clear();
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_EQ(cache.memory_bytes(), 0u);
}

TEST(MaskCacheTest, WhatIsTooLargeIsNotKept) {
  MaskCache cache(100);
  cache.Insert(1, MaskOfWord(1));
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_EQ(cache.memory_bytes(), 0u);
}

TEST(MaskCacheTest, AMaskThatWasTakenLivesOn) {
  MaskCache cache(600);
  cache.Insert(1, MaskOfWord(1));
  const auto taken = cache.Find(1);
  cache.Insert(2, MaskOfWord(2));
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_EQ(taken->front(), 1u);
}

}  // namespace
}  // namespace retroinfer::constraint
