#include "gpu_worker/measuring/synthetic/cell_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

constexpr size_t kDim = 128, kKvHeads = 2, kGroup = 4, kTokensOfPage = 4;

SyntheticShape ShapeOf(int64_t tokens) {
  return {.geometry = {.num_layers = 5, .num_kv_heads = kKvHeads, .head_dim = kDim},
          .num_query_heads = kKvHeads * kGroup,
          .max_tokens = tokens};
}

// Clusters that a step of so many retrieves.
size_t Retrieved(const CellPlan& plan) {
  return std::max<size_t>(64, static_cast<size_t>(std::ceil(0.018 * plan.num_clusters)));
}

// Pages of each cluster of a KV head, by the tokens that are meant for it.
std::vector<uint32_t> PagesOf(const SyntheticTables& tables, const CellPlan& plan, size_t head) {
  std::vector<uint32_t> tokens(plan.num_clusters);
  const size_t variants = 2;
  for (size_t t = kSinkTokens; t < kSinkTokens + plan.num_clusters * kTokensPerCluster; ++t) {
    ++tokens[static_cast<size_t>(tables.ids[t * kKvHeads + head]) / variants];
  }
  for (uint32_t& count : tokens) count = (count + kTokensOfPage - 1) / kTokensOfPage;
  return tokens;
}

// An LRU cache over pages, for all sizes at once: an access is hit by caches that hold the pages
// that were read since the last one.
class LruCaches {
 public:
  explicit LruCaches(size_t max_accesses) : sums_(max_accesses + 1) {}

  // Returns the pages of the smallest cache that has the cluster.
  uint64_t Read(uint64_t cluster, uint32_t pages) {
    ++now_;
    size_t& last = last_[cluster];
    uint64_t reach = UINT64_MAX;
    if (last != 0) {
      reach = held_ - SumTo(last) + pages;
      Add(last, -int64_t{pages});
      held_ -= pages;
    }
    Add(now_, pages);
    held_ += pages;
    last = now_;
    return reach;
  }

 private:
  void Add(size_t at, int64_t value) {
    for (; at < sums_.size(); at += at & (~at + 1)) sums_[at] += value;
  }
  uint64_t SumTo(size_t at) const {
    int64_t sum = 0;
    for (; at > 0; at -= at & (~at + 1)) sum += sums_[at];
    return static_cast<uint64_t>(sum);
  }

  std::vector<int64_t> sums_;  // Fenwick's tree, by access
  std::unordered_map<uint64_t, size_t> last_;
  size_t now_ = 0;
  uint64_t held_ = 0;
};

TEST(CellTablesTest, LruCachesHitWhatTheTraceHits) {
  constexpr size_t kSteps = 1000, kLayers = 5;
  const auto shape_of = [](RecordedModel model, int64_t tokens) {
    SyntheticShape shape = ShapeOf(tokens);
    shape.reuse = model;
    return shape;
  };
  for (const SyntheticShape& shape :
       {shape_of(RecordedModel::kCode, 30'788), shape_of(RecordedModel::kCode, 122'880),
        shape_of(RecordedModel::kCode, 129'092), shape_of(RecordedModel::kNeedle, 30'719),
        shape_of(RecordedModel::kNeedle, 129'028)}) {
    const RecordedReuse& reuse = ReuseFor(shape.reuse, shape.max_tokens);
    SCOPED_TRACE(absl::StrCat(reuse.trace, ", ", shape.max_tokens, " tokens"));
    const CellPlan plan = PlanCells(shape);
    const SyntheticTables tables = MakeCellTables(shape);
    const size_t retrieved = Retrieved(plan);
    const size_t of_first = plan.has_constant
                                ? retrieved - (plan.cells_of_step - 1) * plan.clusters_of_cell
                                : plan.clusters_of_cell;
    std::vector<std::vector<uint32_t>> pages;
    uint64_t all_pages = 0;
    for (size_t head = 0; head < kKvHeads; ++head) {
      pages.push_back(PagesOf(tables, plan, head));
      all_pages += std::accumulate(pages[head].begin(), pages[head].end(), uint64_t{0}) * kLayers;
    }
    constexpr std::array<double, 4> kShares = {0.05, 0.1, 0.2, 0.4};
    std::array<double, 4> hits{};
    double read = 0;
    LruCaches caches(kSteps * kLayers * kKvHeads * retrieved);
    for (size_t step = 0; step < kSteps; ++step) {
      for (size_t list = 0; list < kLayers * kKvHeads; ++list) {
        const size_t set = list / kKvHeads, head = list % kKvHeads;
        const size_t row = (set * kQueriesOfSet + step) * kKvHeads + head;
        for (size_t i = 0; i < plan.cells_of_step; ++i) {
          const size_t cell = tables.cells[row * plan.cells_of_step + i];
          for (size_t j = 0; j < (i == 0 ? of_first : plan.clusters_of_cell); ++j) {
            const size_t cluster = cell * plan.clusters_of_cell + j;
            const uint32_t own = pages[head][cluster];
            const uint64_t reach = caches.Read(list << 32 | cluster, own);
            if (step < kSteps / 2) continue;
            read += own;
            for (size_t share = 0; share < kShares.size(); ++share) {
              if (static_cast<double>(reach) <= kShares[share] * static_cast<double>(all_pages)) {
                hits[share] += own;
              }
            }
          }
        }
      }
    }
    for (size_t share = 0; share < kShares.size(); ++share) {
      // At 5 % the draws of questions miss their trace by more: their steps differ by more.
      const double points = share == 0 && shape.reuse == RecordedModel::kNeedle ? 3.2 : 1.5;
      EXPECT_NEAR(100 * hits[share] / read, 100 * reuse.lru_hits[share], points) << kShares[share];
    }
    // A step reads as much of all pages as well.
    const double of_all = read / (kSteps / 2) / static_cast<double>(all_pages);
    EXPECT_NEAR(of_all / static_cast<double>(retrieved) * static_cast<double>(plan.num_clusters),
                reuse.pages, 0.03);
  }
}

float FromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Scores of all clusters for the query heads of one step, through softmax and the group's maximum.
std::vector<double> Ranks(const SyntheticTables& tables, const CellPlan& plan, size_t dim,
                          size_t group, const uint16_t* queries) {
  std::vector<double> ranks(plan.num_clusters);
  for (size_t head = 0; head < group; ++head) {
    std::vector<double> weights(plan.num_clusters);
    for (size_t cluster = 0; cluster < plan.num_clusters; ++cluster) {
      double dot = 0;
      for (size_t d = 0; d < dim; ++d) {
        dot += double{FromBf16(tables.rows[cluster * 2 * dim + d])} *
               FromBf16(queries[head * dim + d]);
      }
      weights[cluster] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = std::max(ranks[i], weights[i] / sum);
  }
  return ranks;
}

TEST(CellTablesTest, QueriesRetrieveTheCellsThatTheyAreMadeFor) {
  for (const size_t dim : {64, 128}) {
    for (const size_t group : {1, 2, 4}) {
      SCOPED_TRACE(dim * 10 + group);
      SyntheticShape shape = ShapeOf(60'000);
      shape.geometry.head_dim = static_cast<uint32_t>(dim);
      shape.geometry.num_kv_heads = 1;
      shape.geometry.num_layers = 1;
      shape.num_query_heads = static_cast<int32_t>(group);
      const CellPlan plan = PlanCells(shape);
      const SyntheticTables tables = MakeCellTables(shape);
      const size_t retrieved = Retrieved(plan);
      size_t wrong = 0;
      constexpr size_t kStride = 64;
      for (size_t step = 0; step < kQueriesOfSet; step += kStride) {
        const std::vector<double> ranks =
            Ranks(tables, plan, dim, group, &tables.queries[step * group * dim]);
        std::vector<size_t> order(plan.num_clusters);
        std::iota(order.begin(), order.end(), size_t{0});
        std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(retrieved),
                          order.end(), [&](size_t a, size_t b) { return ranks[a] > ranks[b]; });
        const auto asked = tables.cells.begin() + static_cast<ptrdiff_t>(step * plan.cells_of_step);
        for (size_t i = 0; i < retrieved; ++i) {
          wrong += std::count(asked, asked + static_cast<ptrdiff_t>(plan.cells_of_step),
                              order[i] / plan.clusters_of_cell) == 0;
        }
      }
      EXPECT_LT(static_cast<double>(wrong),
                0.005 * static_cast<double>(retrieved * kQueriesOfSet / kStride));
    }
  }
}

// Else they would take the softmax of a query head, and others' clusters its place.
TEST(CellTablesTest, NoQueryAsksForGeneratedTokens) {
  SyntheticShape shape = ShapeOf(20'000);
  shape.geometry.num_layers = 1;
  const SyntheticTables tables = MakeCellTables(shape);
  ASSERT_EQ(tables.generated.size(), kGeneratedTokens * kKvHeads * kDim);
  const auto score = [&](const uint16_t* query, const uint16_t* key) {
    double dot = 0;
    for (size_t d = 0; d < kDim; ++d) dot += double{FromBf16(query[d])} * FromBf16(key[d]);
    return dot / std::sqrt(double{kDim});
  };
  size_t close = 0, looked_at = 0;
  for (size_t step = 0; step < kQueriesOfSet; step += 64) {
    for (size_t head = 0; head < kKvHeads * kGroup; ++head) {
      const uint16_t* query = &tables.queries[(step * kKvHeads * kGroup + head) * kDim];
      for (size_t token = 0; token < kGeneratedTokens; token += 8) {
        const uint16_t* key = &tables.generated[(token * kKvHeads + head / kGroup) * kDim];
        close += score(query, key) > 0.8 * 8;  // what is asked for scores 8
        ++looked_at;
      }
    }
  }
  EXPECT_LT(static_cast<double>(close), 0.002 * static_cast<double>(looked_at));
}

TEST(CellTablesTest, PlansAreWholeAtEveryLength) {
  for (const int64_t tokens : {1, 100, 1'100, 5'000, 8'300, 32'768, 122'880, 1'048'576}) {
    SCOPED_TRACE(tokens);
    const CellPlan plan = PlanCells(ShapeOf(tokens));
    EXPECT_GE(plan.num_cells, plan.cells_of_step);
    EXPECT_GE(plan.cells_of_step, 1u);
    EXPECT_LE(plan.num_cells * plan.clusters_of_cell, plan.num_clusters);
    EXPECT_LE(plan.cells_of_step, 5 * kGroup);
    EXPECT_GE(plan.cells_of_step * plan.clusters_of_cell,
              std::min(Retrieved(plan), plan.num_clusters));
  }
  const SyntheticShape small = ShapeOf(300);
  const SyntheticTables tables = MakeCellTables(small);
  EXPECT_EQ(tables.rows.size(), CellSizes(small).num_rows * kDim);
  EXPECT_LT(*std::max_element(tables.ids.begin(), tables.ids.end()),
            static_cast<int32_t>(CellSizes(small).num_rows));
}

}  // namespace
}  // namespace retroinfer
