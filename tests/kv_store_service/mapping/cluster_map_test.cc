#include "kv_store_service/mapping/cluster_map.h"

#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

TEST(ClusterMapTest, FindsThePagesOfAClusterInTheArena) {
  ClusterMap map;
  map.Insert(7, 1000, 4, {{10, 9}, {0, 0}, {20, 4}});
  EXPECT_EQ(map.Find(7, 0), (ClusterPages{{1010, 3}, 9}));
  EXPECT_EQ(map.Find(7, 1), ClusterPages{});
  EXPECT_EQ(map.Find(7, 2), (ClusterPages{{1020, 1}, 4}));
  EXPECT_EQ(map.Find(7, 3), std::nullopt);
  EXPECT_EQ(map.Find(8, 0), std::nullopt);
}

TEST(ClusterMapTest, CountsAndForgets) {
  ClusterMap map;
  map.Insert(1, 0, 4, {{1, 1}, {2, 1}});
  map.Insert(2, 100, 4, {{1, 1}});
  EXPECT_EQ(map.num_clusters(), 3u);
  EXPECT_EQ(map.num_clusters(1), 2u);
  map.Erase(1);
  map.Erase(1);
  EXPECT_EQ(map.num_clusters(), 1u);
  EXPECT_EQ(map.num_clusters(1), 0u);
  map.Clear();
  EXPECT_EQ(map.num_clusters(), 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
