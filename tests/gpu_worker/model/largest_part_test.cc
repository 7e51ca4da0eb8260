#include "gpu_worker/model/largest_part.h"

#include <gtest/gtest.h>

#include "gpu_worker/model/model_shapes.h"

namespace retroinfer {
namespace {

TEST(LargestPartTest, OneRankHasTheWhole) {
  const ModelConfig whole = NamedModelShape("tiny").value();
  KvHeadRange heads;
  const auto part = LargestPart(whole, {}, &heads);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->intermediate_size, whole.intermediate_size);
  EXPECT_EQ(part->num_kv_heads, whole.num_kv_heads);
  EXPECT_EQ(heads, KvHeadRange());
}

TEST(LargestPartTest, RanksDifferInTheirHeadsAlone) {
  ModelConfig whole = NamedModelShape("tiny").value();
  whole.num_query_heads = 4;
  whole.num_kv_heads = 2;
  whole.intermediate_size = 24;  // three units of eight: one rank has two of them
  KvHeadRange heads[2];
  for (int rank = 0; rank < 2; ++rank) {
    const auto part = LargestPart(whole, {.rank = rank, .num_ranks = 2}, &heads[rank]);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->intermediate_size, 16);
    EXPECT_EQ(part->num_query_heads, 2u);
    EXPECT_EQ(part->num_kv_heads, 1u);
    EXPECT_FALSE(part->shard.has_value());
  }
  EXPECT_EQ(heads[0], (KvHeadRange{0, 1, 2}));
  EXPECT_EQ(heads[1], (KvHeadRange{1, 1, 2}));
}

TEST(LargestPartTest, WhatDoesNotGoIsRefused) {
  const ModelConfig whole = NamedModelShape("tiny").value();
  KvHeadRange heads;
  EXPECT_EQ(LargestPart(whole, {.num_ranks = 7}, &heads).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
