#include "gpu_worker/measuring/synthetic/cell_tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/measuring/synthetic/reuse_walk.h"

namespace retroinfer {
namespace {

constexpr size_t kTokens = kTokensPerCluster;
constexpr size_t kGroup = kClustersPerMetaBlock;  // clusters that share tokens; segments have whole
constexpr int64_t kMinWindow = 64;                // tokens behind the last segment
constexpr size_t kVariants = 2;                   // of a cluster's keys
constexpr float kClusterSpread = 0.25f;           // of a cell, by its direction's length
constexpr float kKeySpread = 0.08f;               // of a cluster
constexpr float kSizeSpread = 0.5f;               // of clusters, whose sizes are log-normal
// Cells of a query head for each dimension: others' products with its query stay below 0.8.
constexpr double kCellsOfDimension = 0.04;
constexpr float kQueryStrength = 8;  // score of what is retrieved
constexpr float kInPart = 0.85f;     // the product of the cell that is retrieved in part

using Vectors = std::vector<float>;

size_t NumKeptClusters(const SyntheticShape& shape) {
  const size_t blocks =
      (static_cast<size_t>(shape.max_tokens) + kDecodeSegmentTokens - 1) / kDecodeSegmentTokens;
  return std::max<size_t>(blocks, 1) * kGroup;
}

// Unit vectors with their deviation from another one.
void AddDeviation(std::span<float> vector, float length, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, length / std::sqrt(static_cast<float>(vector.size())));
  for (float& value : vector) value += normal(random);
}

// Directions of all cells, of length one.
Vectors MakeCells(size_t num_cells, size_t dim, std::mt19937_64& random) {
  Vectors cells(num_cells * dim);
  for (size_t cell = 0; cell < num_cells; ++cell) {
    const std::span<float> vector = std::span(cells).subspan(cell * dim, dim);
    AddDeviation(vector, 1, random);
    const float length =
        std::sqrt(std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0f));
    for (float& value : vector) value /= length;
  }
  return cells;
}

std::vector<uint16_t> MakeRows(const Vectors& cells, size_t num_clusters, size_t clusters_of_cell,
                               size_t dim, std::mt19937_64& random) {
  const float scale = std::sqrt(static_cast<float>(dim));
  std::vector<uint16_t> rows;
  rows.reserve(num_clusters * kVariants * dim);
  for (size_t cluster = 0; cluster < num_clusters; ++cluster) {
    const auto cell = cells.begin() + static_cast<ptrdiff_t>(cluster / clusters_of_cell * dim);
    Vectors centre(cell, cell + static_cast<ptrdiff_t>(dim));
    AddDeviation(centre, kClusterSpread, random);
    for (size_t variant = 0; variant < kVariants; ++variant) {
      Vectors key = centre;
      AddDeviation(key, kKeySpread, random);
      for (const float value : key) rows.push_back(Bf16Bits(scale * value));
    }
  }
  return rows;
}

// Which row each token of one KV head has. `cell_sizes`: logarithms.
void MakeIds(size_t num_clusters, size_t clusters_of_cell, std::span<const float> cell_sizes,
             size_t head, size_t num_heads, std::mt19937_64& random, std::vector<int32_t>& ids) {
  std::normal_distribution<float> normal(0, kSizeSpread);
  std::vector<double> weights(num_clusters);
  for (size_t i = 0; i < num_clusters; ++i) {
    weights[i] = std::exp(normal(random) + cell_sizes[i / clusters_of_cell]);
  }
  std::discrete_distribution<size_t> draw;
  size_t drawn_from = num_clusters;  // the group
  for (size_t token = 0; token * num_heads + head < ids.size(); ++token) {
    const size_t indexed = token < kSinkTokens ? 0 : token - kSinkTokens;
    size_t cluster = std::min(indexed / kTokens, num_clusters - 1);
    if (indexed % kTokens != 0) {
      const size_t group = cluster / kGroup * kGroup;
      if (drawn_from != group) {
        const auto first = weights.begin() + static_cast<ptrdiff_t>(group);
        draw = std::discrete_distribution<size_t>(first, first + kGroup);
        drawn_from = group;
      }
      cluster = group + draw(random);
    }
    ids[token * num_heads + head] =
        static_cast<int32_t>(cluster * kVariants + random() % kVariants);
  }
}

// Of the last clusters that are kept, which are behind all that are indexed and so asked for by
// nobody: a cluster for each 16 tokens.
std::vector<uint16_t> MakeGenerated(std::span<const uint16_t> rows, size_t num_clusters, size_t dim,
                                    size_t num_heads, std::mt19937_64& random) {
  static_assert(kGeneratedTokens == kGroup * kTokens);
  std::vector<uint16_t> keys;
  keys.reserve(kGeneratedTokens * num_heads * dim);
  for (size_t token = 0; token < kGeneratedTokens; ++token) {
    const size_t cluster = num_clusters - kGroup + token / kTokens;
    for (size_t head = 0; head < num_heads; ++head) {
      const size_t row = cluster * kVariants + random() % kVariants;
      const std::span<const uint16_t> key = rows.subspan(row * dim, dim);
      keys.insert(keys.end(), key.begin(), key.end());
    }
  }
  return keys;
}

// The combination of cells' directions whose products with them are `products`. Overwrites those.
Vectors Combine(const Vectors& cells, std::span<const uint32_t> chosen,
                std::vector<double> products, size_t dim) {
  const size_t n = chosen.size();
  std::vector<double> gram(n * n);
  const auto vector = [&](size_t i) {
    return cells.begin() + static_cast<ptrdiff_t>(chosen[i] * dim);
  };
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      gram[i * n + j] =
          std::inner_product(vector(i), vector(i) + static_cast<ptrdiff_t>(dim), vector(j), 0.0);
    }
  }
  // Gauss; directions of few cells are far from being dependent.
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const double factor = gram[j * n + i] / gram[i * n + i];
      for (size_t k = i; k < n; ++k) gram[j * n + k] -= factor * gram[i * n + k];
      products[j] -= factor * products[i];
    }
  }
  Vectors sum(dim);
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) products[i] -= gram[i * n + k] * products[k];
    products[i] /= gram[i * n + i];
    for (size_t d = 0; d < dim; ++d) {
      sum[d] += static_cast<float>(products[i]) * *(vector(i) + static_cast<ptrdiff_t>(d));
    }
  }
  return sum;
}

// Writes the queries of one step for the query heads of a group.
void WriteQueries(const Vectors& cells, const CellPlan& plan, std::span<const uint32_t> of_step,
                  size_t group, size_t dim, uint16_t* out) {
  for (size_t head = 0; head < group; ++head) {
    std::vector<uint32_t> chosen;
    std::vector<double> products;
    for (size_t i = head % of_step.size(); i < of_step.size(); i += group) {
      chosen.push_back(of_step[i]);
      products.push_back(i == 0 && plan.has_constant ? kInPart : 1);
    }
    const Vectors query = Combine(cells, chosen, std::move(products), dim);
    for (size_t d = 0; d < dim; ++d) out[head * dim + d] = Bf16Bits(kQueryStrength * query[d]);
  }
}

// The cells of one KV head: text reads some before others, and these are larger.
struct CellOrder {
  std::vector<uint32_t> cells;
  size_t num_early = 0;  // the first ones
  // Logarithms, by cell.
  std::vector<float> sizes;
};

CellOrder OrderCells(const RecordedReuse& reuse, const CellPlan& plan, size_t all_cells,
                     std::mt19937_64& random) {
  // A cluster of 16 tokens has 4 pages, and on average 3 more tokens' places in its last one.
  constexpr double kPages = 4, kLost = 0.375;
  // Large cells take tokens from each other, too: 1,024 are shared by 64 clusters.
  constexpr double kShared = 1.2;
  const double early = double{reuse.ever_read};
  const double pages = 1 + kShared * (double{reuse.pages} - 1);
  const double size = (pages * (kPages + kLost) - kLost) / kPages;
  const double of_others = (1 - early * size) / (1 - early);
  CellOrder order{
      .cells = std::vector<uint32_t>(plan.num_cells),
      .num_early = static_cast<size_t>(std::lround(early * static_cast<double>(plan.num_cells))),
      .sizes = std::vector<float>(all_cells, static_cast<float>(std::log(of_others)))};
  std::iota(order.cells.begin(), order.cells.end(), 0u);
  std::shuffle(order.cells.begin(), order.cells.end(), random);
  for (size_t i = 0; i < order.num_early; ++i) {
    order.sizes[order.cells[i]] = static_cast<float>(std::log(size));
  }
  return order;
}

// The order in which a layer reads them first.
std::vector<uint32_t> FirstReads(const CellOrder& order, std::mt19937_64& random) {
  std::vector<uint32_t> cells = order.cells;
  const auto others = cells.begin() + static_cast<ptrdiff_t>(order.num_early);
  std::shuffle(cells.begin(), others, random);
  std::shuffle(others, cells.end(), random);
  return cells;
}

}  // namespace

CellPlan PlanCells(const SyntheticShape& shape) {
  const int64_t tokens = shape.context_tokens != 0 ? shape.context_tokens : shape.max_tokens;
  const int64_t blocks =
      std::max<int64_t>(1, (tokens - int64_t{kSinkTokens} - kMinWindow) / kDecodeSegmentTokens);
  CellPlan plan{.num_clusters = static_cast<size_t>(blocks) * kGroup};
  const auto wanted = static_cast<size_t>(
      std::max(std::ceil(shape.retrieval_ratio * static_cast<double>(plan.num_clusters)),
               static_cast<double>(std::max(1, shape.min_retrieved))));
  const size_t retrieved = std::min(plan.num_clusters, wanted);
  const auto group = static_cast<size_t>(shape.num_query_heads) / shape.geometry.num_kv_heads;
  const auto of_query_head =
      static_cast<size_t>(std::max(1.0, std::floor(kCellsOfDimension * shape.geometry.head_dim)));
  plan.clusters_of_cell = 1;
  while (retrieved / plan.clusters_of_cell + 1 > of_query_head * group &&
         plan.clusters_of_cell * 2 <= retrieved) {
    plan.clusters_of_cell *= 2;
  }
  plan.num_cells = plan.num_clusters / plan.clusters_of_cell;
  const size_t whole = retrieved / plan.clusters_of_cell;
  plan.has_constant = whole < plan.num_cells;
  plan.cells_of_step = whole + (plan.has_constant ? 1 : 0);
  plan.constant_share = static_cast<double>(retrieved - whole * plan.clusters_of_cell) /
                        static_cast<double>(retrieved);
  return plan;
}

SyntheticSizes CellSizes(const SyntheticShape& shape) {
  const int64_t context = shape.context_tokens != 0 ? shape.context_tokens : shape.max_tokens;
  const uint32_t recorded_layers = ReuseFor(shape.reuse, context).num_layers;
  return {.num_rows = NumKeptClusters(shape) * kVariants,
          .num_ids = static_cast<size_t>(shape.max_tokens + 1) * shape.geometry.num_kv_heads,
          .num_query_sets = std::min(shape.geometry.num_layers, recorded_layers)};
}

const HeadReuse& ReuseOfHead(const RecordedReuse& reuse, size_t query_set, size_t num_query_sets,
                             size_t head, size_t num_kv_heads) {
  return reuse.heads[query_set * reuse.num_layers / num_query_sets * reuse.num_kv_heads +
                     head * reuse.num_kv_heads / num_kv_heads];
}

SyntheticTables MakeCellTables(const SyntheticShape& shape) {
  const auto dim = static_cast<size_t>(shape.geometry.head_dim);
  const size_t kv_heads = shape.geometry.num_kv_heads;
  const auto query_heads = static_cast<size_t>(shape.num_query_heads);
  const size_t group = query_heads / kv_heads;
  const CellPlan plan = PlanCells(shape);
  const SyntheticSizes sizes = CellSizes(shape);
  const int64_t context = shape.context_tokens != 0 ? shape.context_tokens : shape.max_tokens;
  const RecordedReuse& reuse = ReuseFor(shape.reuse, context);
  const size_t num_clusters = NumKeptClusters(shape);
  const size_t all_cells = (num_clusters + plan.clusters_of_cell - 1) / plan.clusters_of_cell;
  std::mt19937_64 random(shape.seed);
  const Vectors cells = MakeCells(all_cells, dim, random);
  SyntheticTables tables;
  tables.rows = MakeRows(cells, num_clusters, plan.clusters_of_cell, dim, random);
  tables.ids.resize(sizes.num_ids);
  tables.queries.resize(sizes.num_query_sets * kQueriesOfSet * query_heads * dim);
  tables.cells.resize(sizes.num_query_sets * kQueriesOfSet * kv_heads * plan.cells_of_step);
  for (size_t head = 0; head < kv_heads; ++head) {
    const CellOrder cell_order = OrderCells(reuse, plan, all_cells, random);
    MakeIds(num_clusters, plan.clusters_of_cell, cell_order.sizes, head, kv_heads, random,
            tables.ids);
    for (size_t set = 0; set < sizes.num_query_sets; ++set) {
      std::vector<uint32_t> order = FirstReads(cell_order, random);
      std::vector<uint32_t> asked;
      if (plan.has_constant) {
        asked.push_back(order.front());
        order.erase(order.begin());
      }
      const size_t num_constant = asked.size();
      asked.resize(plan.cells_of_step);
      ReuseWalk walk(reuse, ReuseOfHead(reuse, set, sizes.num_query_sets, head, kv_heads),
                     std::move(order), plan.cells_of_step - num_constant, plan.constant_share,
                     random());
      for (size_t step = 0; step < kQueriesOfSet; ++step) {
        const size_t row = set * kQueriesOfSet + step;
        const std::span<const uint32_t> now = walk.Next();
        std::copy(now.begin(), now.end(), asked.begin() + static_cast<ptrdiff_t>(num_constant));
        std::copy(asked.begin(), asked.end(),
                  tables.cells.begin() +
                      static_cast<ptrdiff_t>((row * kv_heads + head) * plan.cells_of_step));
        WriteQueries(cells, plan, asked, group, dim,
                     &tables.queries[(row * query_heads + head * group) * dim]);
      }
    }
  }
  tables.generated = MakeGenerated(tables.rows, num_clusters, dim, kv_heads, random);
  return tables;
}

}  // namespace retroinfer
