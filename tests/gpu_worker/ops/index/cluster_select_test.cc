#include "gpu_worker/ops/index/cluster_select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;
using testing::ElementsAre;

// The zones of one (sequence, KV head), sorted.
struct Zones {
  std::vector<int32_t> retrieved;
  std::vector<int32_t> estimated;
};

class ClusterSelectTest : public testing::TestWithParam<BackendParam> {
 protected:
  // scores: [batch, query_heads, max_clusters]. Returns [batch, kv_heads].
  std::vector<Zones> Select(const std::vector<float>& scores, int64_t max_clusters,
                            int32_t query_heads, int32_t kv_heads,
                            const std::vector<SelectionBudget>& budgets) {
    const auto batch = static_cast<int32_t>(budgets.size());
    const size_t rows = static_cast<size_t>(batch * kv_heads);
    int64_t max_retrieved = 0, max_estimated = 0;
    for (const SelectionBudget& budget : budgets) {
      max_retrieved = std::max<int64_t>(max_retrieved, budget.num_retrieved);
      max_estimated = std::max<int64_t>(max_estimated, budget.num_estimated);
    }
    const DeviceBuffer device_scores = data_.Upload(scores);
    const DeviceBuffer device_budgets = data_.Upload(budgets);
    // A guard after each output shows writes past the end.
    const DeviceBuffer retrieved =
        data_.Upload(std::vector<int32_t>(rows * static_cast<size_t>(max_retrieved) + 16, -7));
    const DeviceBuffer estimated =
        data_.Upload(std::vector<int32_t>(rows * static_cast<size_t>(max_estimated) + 16, -7));
    const DeviceBuffer num_retrieved = data_.Upload(std::vector<int32_t>(rows, -7));
    const DeviceBuffer num_estimated = data_.Upload(std::vector<int32_t>(rows, -7));
    const DeviceBuffer scratch = data_.Allocate(rows * static_cast<size_t>(max_clusters) * 8);
    const absl::Status status = backend_->ops->index().ClusterSelect(
        *backend_->stream, {.scores = device_scores.as<const float>(),
                            .max_clusters = max_clusters,
                            .batch = batch,
                            .num_query_heads = query_heads,
                            .num_kv_heads = kv_heads,
                            .budgets = device_budgets.as<const SelectionBudget>(),
                            .max_retrieved = max_retrieved,
                            .max_estimated = max_estimated,
                            .retrieved = retrieved.as<int32_t>(),
                            .num_retrieved = num_retrieved.as<int32_t>(),
                            .estimated = estimated.as<int32_t>(),
                            .num_estimated = num_estimated.as<int32_t>(),
                            .scratch = scratch.bytes()});
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return {};
    const auto r = Rows(retrieved, num_retrieved, rows, max_retrieved);
    const auto e = Rows(estimated, num_estimated, rows, max_estimated);
    std::vector<Zones> zones(rows);
    for (size_t i = 0; i < rows; ++i) zones[i] = {r[i], e[i]};
    return zones;
  }

  std::vector<std::vector<int32_t>> Rows(const DeviceBuffer& ids, const DeviceBuffer& counts,
                                         size_t rows, int64_t stride) {
    const auto host = data_.Download<int32_t>(ids);
    const auto num = data_.Download<int32_t>(counts);
    for (size_t i = rows * static_cast<size_t>(stride); i < host.size(); ++i) {
      EXPECT_EQ(host[i], -7) << "written past the end";
    }
    std::vector<std::vector<int32_t>> lists(rows);
    for (size_t i = 0; i < rows; ++i) {
      EXPECT_GE(num[i], 0);
      EXPECT_LE(num[i], stride);
      const auto begin = host.begin() + static_cast<int64_t>(i) * stride;
      lists[i].assign(begin, begin + num[i]);
      std::sort(lists[i].begin(), lists[i].end());
    }
    return lists;
  }

  // Ranks by the definition, in doubles; -1 for empty clusters.
  static std::vector<double> Ranks(std::span<const float> scores, size_t stride, size_t group,
                                   size_t count, GroupRanking ranking) {
    std::vector<double> ranks(count, 0.0);
    for (size_t g = 0; g < group; ++g) {
      const float* row = scores.data() + g * stride;
      const float max = *std::max_element(row, row + count);
      double sum = 0;
      for (size_t i = 0; i < count; ++i) sum += std::exp(double{row[i]} - max);
      for (size_t i = 0; i < count; ++i) {
        const double weight = std::exp(double{row[i]} - max) / sum;
        ranks[i] = row[i] == -INFINITY                      ? -1
                   : ranking == GroupRanking::kSumOfSoftmax ? ranks[i] + weight
                                                            : std::max(ranks[i], weight);
      }
    }
    return ranks;
  }

  // Compares ranks, not ids: two implementations may order near-equal clusters differently.
  static void ExpectBest(const Zones& zones, const std::vector<double>& ranks,
                         const SelectionBudget& budget) {
    const auto live = static_cast<int32_t>(
        std::count_if(ranks.begin(), ranks.end(), [](double rank) { return rank >= 0; }));
    const int32_t r = std::min(budget.num_retrieved, live);
    const int32_t total = std::min(budget.num_retrieved + budget.num_estimated, live);
    ASSERT_EQ(static_cast<int32_t>(zones.retrieved.size()), r);
    ASSERT_EQ(static_cast<int32_t>(zones.estimated.size()), total - r);
    std::set<int32_t> seen;
    double least_retrieved = INFINITY, most_estimated = -1, least_estimated = INFINITY;
    for (const int32_t i : zones.retrieved) {
      EXPECT_TRUE(seen.insert(i).second);
      least_retrieved = std::min(least_retrieved, ranks.at(static_cast<size_t>(i)));
    }
    for (const int32_t i : zones.estimated) {
      EXPECT_TRUE(seen.insert(i).second);
      most_estimated = std::max(most_estimated, ranks.at(static_cast<size_t>(i)));
      least_estimated = std::min(least_estimated, ranks.at(static_cast<size_t>(i)));
    }
    double most_left = -1;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!seen.contains(static_cast<int32_t>(i))) most_left = std::max(most_left, ranks[i]);
    }
    const double slack = 1 + 1e-5;  // exp() and f32 sums
    EXPECT_GE(least_retrieved * slack, most_estimated);
    if (r > 0) {
      EXPECT_GE(least_retrieved * slack, most_left);
    }
    if (total > r) {
      EXPECT_GE(least_estimated * slack, most_left);
    }
    if (total > 0) {
      EXPECT_GE(std::min(least_retrieved, least_estimated), 0) << "an empty cluster";
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

constexpr float kEmpty = -INFINITY;

TEST_P(ClusterSelectTest, PicksByHand) {
  std::vector<float> scores(64, kEmpty);
  scores[3] = 1;
  scores[10] = 5;
  scores[20] = 3;
  scores[63] = 4;
  const auto zones = Select(scores, 64, 1, 1, {{64, 1, 2, GroupRanking::kSumOfSoftmax}});
  EXPECT_THAT(zones[0].retrieved, ElementsAre(10));
  EXPECT_THAT(zones[0].estimated, ElementsAre(20, 63));
}

TEST_P(ClusterSelectTest, FewerLiveClustersThanTheBudget) {
  std::vector<float> scores(64, kEmpty);
  scores[5] = 1;
  scores[6] = 2;
  scores[7] = -300;  // weight 0 in f32, yet live
  const auto zones = Select(scores, 64, 1, 1, {{64, 2, 60, GroupRanking::kSumOfSoftmax}});
  EXPECT_THAT(zones[0].retrieved, ElementsAre(5, 6));
  EXPECT_THAT(zones[0].estimated, ElementsAre(7));
}

TEST_P(ClusterSelectTest, SumAndMaximumRankDifferently) {
  // Head 0 wants cluster 1 alone; both heads like cluster 2 a little; cluster 3 takes the rest.
  std::vector<float> scores(128, kEmpty);
  const auto set = [&](size_t cluster, double head0, double head1) {
    scores[cluster] = static_cast<float>(std::log(head0));
    scores[64 + cluster] = static_cast<float>(std::log(head1));
  };
  set(1, 0.5, 0.001);
  set(2, 0.4, 0.4);
  set(3, 0.1, 0.599);
  const auto sum = Select(scores, 64, 2, 1, {{64, 2, 0, GroupRanking::kSumOfSoftmax}});
  EXPECT_THAT(sum[0].retrieved, ElementsAre(2, 3));
  const auto max = Select(scores, 64, 2, 1, {{64, 2, 0, GroupRanking::kMaxOfSoftmax}});
  EXPECT_THAT(max[0].retrieved, ElementsAre(1, 3));
}

TEST_P(ClusterSelectTest, TiesFillTheBudgetExactly) {
  const std::vector<float> scores(256, 0.25f);
  const SelectionBudget budget{256, 100, 50, GroupRanking::kSumOfSoftmax};
  const auto zones = Select(scores, 256, 1, 1, {budget});
  ExpectBest(zones[0], std::vector<double>(256, 1.0), budget);
  const auto again = Select(scores, 256, 1, 1, {budget});
  EXPECT_EQ(zones[0].retrieved, again[0].retrieved);
  EXPECT_EQ(zones[0].estimated, again[0].estimated);
}

// The best cluster of each head has all of its mass, so its rank is 0 or -0.
TEST_P(ClusterSelectTest, ZerosOfBothSignsAreOneRank) {
  std::vector<float> scores(4 * 64, -90.0f);
  const std::array<float, 4> best = {-0.0f, 0.0f, 0.0f, -0.0f};
  for (size_t head = 0; head < 4; ++head) scores[head * 64 + 10 * head + 3] = best[head];
  const SelectionBudget budget{64, 2, 1, GroupRanking::kMaxOfSoftmax};
  const auto zones = Select(scores, 64, 4, 1, {budget});
  ExpectBest(zones[0], Ranks(scores, 64, 4, 64, budget.ranking), budget);
}

// So many ties that no short list of candidates holds them, between clusters that are no ties.
TEST_P(ClusterSelectTest, ThousandsOfTies) {
  constexpr int64_t kClusters = 4096;
  std::vector<float> scores(kClusters, 1.0f);
  for (size_t i = 0; i < 300; ++i) scores[i * 13] = 2.0f + static_cast<float>(i) / 128;
  for (size_t i = 0; i < 200; ++i) scores[i * 17 + 5] = -3.0f;
  for (const GroupRanking ranking : {GroupRanking::kSumOfSoftmax, GroupRanking::kMaxOfSoftmax}) {
    for (const int32_t num_retrieved : {0, 10, 300, 1000}) {
      SCOPED_TRACE(num_retrieved);
      const SelectionBudget budget{kClusters, num_retrieved, 1500, ranking};
      const auto zones = Select(scores, kClusters, 1, 1, {budget});
      ExpectBest(zones[0], Ranks(scores, kClusters, 1, kClusters, ranking), budget);
      const auto again = Select(scores, kClusters, 1, 1, {budget});
      EXPECT_EQ(zones[0].retrieved, again[0].retrieved);
      EXPECT_EQ(zones[0].estimated, again[0].estimated);
    }
  }
}

// A context of a million tokens beside a short one.
TEST_P(ClusterSelectTest, TensOfThousandsOfClusters) {
  constexpr int64_t kClusters = 65'536;
  auto scores = RandomNormal(2 * 2 * 4 * kClusters, 23, 4.0f);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i % kClusters % 29 == 7) scores[i] = kEmpty;
  }
  const std::vector<SelectionBudget> budgets = {
      {kClusters, 1180, 15'204, GroupRanking::kMaxOfSoftmax},
      {128, 64, 64, GroupRanking::kSumOfSoftmax}};
  const auto zones = Select(scores, kClusters, 8, 2, budgets);
  for (size_t row = 0; row < zones.size(); ++row) {
    SCOPED_TRACE(row);
    const SelectionBudget& budget = budgets[row / 2];
    ExpectBest(zones[row],
               Ranks(std::span(scores).subspan(row * 4 * kClusters), kClusters, 4,
                     static_cast<size_t>(budget.num_clusters), budget.ranking),
               budget);
  }
}

TEST_P(ClusterSelectTest, EmptyIndexesAndZeroBudgets) {
  const std::vector<float> scores(3 * 64, 1.0f);
  const auto zones = Select(scores, 64, 1, 1,
                            {{0, 0, 0, GroupRanking::kSumOfSoftmax},
                             {64, 0, 8, GroupRanking::kSumOfSoftmax},
                             {64, 64, 0, GroupRanking::kSumOfSoftmax}});
  EXPECT_TRUE(zones[0].retrieved.empty() && zones[0].estimated.empty());
  EXPECT_TRUE(zones[1].retrieved.empty());
  EXPECT_EQ(zones[1].estimated.size(), 8u);
  EXPECT_EQ(zones[2].retrieved.size(), 64u);
  EXPECT_TRUE(zones[2].estimated.empty());
}

TEST_P(ClusterSelectTest, AgreesWithSortingOnRaggedBatches) {
  std::mt19937 random(11);
  for (const int32_t group : {1, 2, 4, 7, 8, 9, 10, 16}) {
    const int64_t max_clusters = 1024;
    const int32_t kv_heads = 2, query_heads = kv_heads * group;
    const std::vector<SelectionBudget> budgets = {
        {64, 10, 20, GroupRanking::kSumOfSoftmax},   {1024, 64, 238, GroupRanking::kMaxOfSoftmax},
        {512, 512, 0, GroupRanking::kSumOfSoftmax},  {960, 1, 1, GroupRanking::kSumOfSoftmax},
        {192, 100, 92, GroupRanking::kMaxOfSoftmax},
    };
    auto scores = RandomNormal(budgets.size() * static_cast<size_t>(query_heads * max_clusters),
                               random(), 3.0f);
    // The same clusters are empty for all heads of a group.
    const auto group_size = static_cast<size_t>(group * max_clusters);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (i % static_cast<size_t>(max_clusters) % 13 == i / group_size % 13) scores[i] = kEmpty;
    }
    const auto zones = Select(scores, max_clusters, query_heads, kv_heads, budgets);
    for (size_t row = 0; row < zones.size(); ++row) {
      SCOPED_TRACE(testing::Message() << "group " << group << " row " << row);
      const SelectionBudget& budget = budgets[row / static_cast<size_t>(kv_heads)];
      const auto ranks = Ranks(std::span(scores).subspan(row * group_size),
                               static_cast<size_t>(max_clusters), static_cast<size_t>(group),
                               static_cast<size_t>(budget.num_clusters), budget.ranking);
      ExpectBest(zones[row], ranks, budget);
    }
  }
}

TEST_P(ClusterSelectTest, ARowDoesNotDependOnTheBatch) {
  const auto scores = RandomNormal(3 * 512, 17, 4.0f);
  const SelectionBudget budget{512, 64, 128, GroupRanking::kSumOfSoftmax};
  const auto together = Select(scores, 512, 1, 1, {budget, budget, budget});
  const auto alone = Select({scores.begin() + 512, scores.begin() + 1024}, 512, 1, 1, {budget});
  EXPECT_EQ(together[1].retrieved, alone[0].retrieved);
  EXPECT_EQ(together[1].estimated, alone[0].estimated);
}

// The best by score, of equal ones the first: what is chosen where all heads of the group have the
// same scores.
Zones BestInOrder(std::span<const float> scores, const SelectionBudget& budget) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < budget.num_clusters; ++i) {
    if (scores[static_cast<size_t>(i)] != -INFINITY) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  const auto r = std::min(order.size(), static_cast<size_t>(budget.num_retrieved));
  const auto total = std::min(order.size(), static_cast<size_t>(budget.num_retrieved) +
                                                static_cast<size_t>(budget.num_estimated));
  Zones zones{
      {order.begin(), order.begin() + static_cast<int64_t>(r)},
      {order.begin() + static_cast<int64_t>(r), order.begin() + static_cast<int64_t>(total)}};
  std::sort(zones.retrieved.begin(), zones.retrieved.end());
  std::sort(zones.estimated.begin(), zones.estimated.end());
  return zones;
}

// Rows of all lengths that are worked on in different ways, with scores that no rounding joins: a
// few levels, so ties everywhere, and more than the range that ranks are sorted in.
TEST_P(ClusterSelectTest, ChoosesTheFirstOfEqualClusters) {
  constexpr size_t kKvHeads = 2;
  std::mt19937 random(5);
  for (const size_t clusters :
       {64, 1024, 4096, 4160, 7680, 8192, 8256, 16'384, 16'448, 40'000, 65'600, 135'168}) {
    for (const uint32_t levels : {1u, 7u, 600u, 5000u}) {
      const size_t widest = clusters > 8192 ? 4 : 16;
      const size_t group = std::array<size_t, 8>{1, 2, 3, 4, 5, 7, 8, widest}[random() % 8];
      SCOPED_TRACE(testing::Message()
                   << clusters << " clusters, " << levels << " levels, group " << group);
      const auto count = static_cast<int32_t>(clusters);
      std::vector<SelectionBudget> budgets;
      std::vector<float> scores, of_rows;
      for (const GroupRanking ranking :
           {GroupRanking::kMaxOfSoftmax, GroupRanking::kSumOfSoftmax}) {
        const auto r = static_cast<int32_t>(random() % clusters) / 4;
        const auto e = static_cast<int32_t>(random() % (clusters - static_cast<size_t>(r) + 1));
        budgets.push_back({count, r, e, ranking});
        for (size_t head = 0; head < kKvHeads; ++head) {
          std::vector<float> row(clusters);
          for (float& score : row) {
            score = random() % 16 == 0 ? kEmpty : static_cast<float>(random() % levels) / 64;
          }
          of_rows.insert(of_rows.end(), row.begin(), row.end());
          for (size_t g = 0; g < group; ++g) scores.insert(scores.end(), row.begin(), row.end());
        }
      }
      const auto zones =
          Select(scores, count, static_cast<int32_t>(group * kKvHeads), kKvHeads, budgets);
      for (size_t row = 0; row < zones.size(); ++row) {
        SCOPED_TRACE(row);
        const Zones best = BestInOrder(std::span(of_rows).subspan(row * clusters, clusters),
                                       budgets[row / kKvHeads]);
        EXPECT_EQ(zones[row].retrieved, best.retrieved);
        EXPECT_EQ(zones[row].estimated, best.estimated);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ClusterSelectTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
