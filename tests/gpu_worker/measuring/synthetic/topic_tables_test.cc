#include "gpu_worker/measuring/synthetic/topic_tables.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace retroinfer {
namespace {

TEST(TopicTablesTest, SizesAreThoseThatItSays) {
  const SyntheticShape shape = {.geometry = {.num_layers = 3, .num_kv_heads = 2, .head_dim = 64},
                                .num_query_heads = 4,
                                .max_tokens = 3000,
                                .overlap = 0.9};
  const SyntheticSizes sizes = TopicSizes(shape);
  const SyntheticTables tables = MakeTopicTables(shape);
  EXPECT_EQ(tables.rows.size(), sizes.num_rows * 64);
  EXPECT_EQ(tables.ids.size(), sizes.num_ids);
  EXPECT_EQ(sizes.num_ids, (3000u + 1 + 3 * sizes.layer_shift) * 2);
  EXPECT_EQ(tables.queries.size(), kQueriesOfSet * 4 * 64);
  EXPECT_GE(*std::min_element(tables.ids.begin(), tables.ids.end()), 0);
  EXPECT_LT(*std::max_element(tables.ids.begin(), tables.ids.end()),
            static_cast<int32_t>(sizes.num_rows));
  EXPECT_EQ(tables.rows, MakeTopicTables(shape).rows);
}

}  // namespace
}  // namespace retroinfer
