#include "tests/support/drawn_page_use.h"

#include <algorithm>
#include <cmath>

#include "gpu_worker/measuring/synthetic/cell_tables.h"

namespace retroinfer::test_support {
namespace {

constexpr uint32_t kTokensOfPage = 4;
constexpr size_t kVariants = 2;  // rows of a cluster, as cell_tables.cc makes them

}  // namespace

DrawnPageUse::DrawnPageUse(uint32_t num_layers, uint32_t num_sequences, int64_t context_tokens)
    : num_layers_(num_layers), num_sequences_(num_sequences), first_page_(kHeads) {
  const SyntheticShape shape{.geometry = {num_layers, kHeads, 128, kBf16Kv},
                             .num_query_heads = 4 * kHeads,
                             .max_tokens = context_tokens};
  const CellPlan plan = PlanCells(shape);
  SyntheticTables tables = MakeCellTables(shape);
  cells_ = std::move(tables.cells);
  num_sets_ = static_cast<uint32_t>(CellSizes(shape).num_query_sets);
  clusters_of_cell_ = static_cast<uint32_t>(plan.clusters_of_cell);
  cells_of_step_ = static_cast<uint32_t>(plan.cells_of_step);
  num_retrieved_ = static_cast<uint32_t>(
      std::ceil(shape.retrieval_ratio * static_cast<double>(plan.num_clusters)));
  for (uint32_t head = 0; head < kHeads; ++head) {
    std::vector<uint32_t> tokens(plan.num_clusters, 0);
    for (size_t i = head; i < tables.ids.size(); i += kHeads) {
      const size_t cluster = static_cast<size_t>(tables.ids[i]) / kVariants;
      if (cluster < tokens.size()) ++tokens[cluster];
    }
    first_page_[head].push_back(pages_of_layer_);
    for (const uint32_t count : tokens) {
      const uint32_t pages = std::max(1u, (count + kTokensOfPage - 1) / kTokensOfPage);
      max_pages_of_cluster_ = std::max(max_pages_of_cluster_, pages);
      pages_of_layer_ += pages;
      first_page_[head].push_back(pages_of_layer_);
    }
  }
}

DrawnPageUse::Pages DrawnPageUse::PagesOf(uint32_t sequence, uint32_t layer, uint32_t head,
                                          uint32_t cluster) const {
  const std::vector<uint32_t>& pages = first_page_[head];
  return {(sequence * num_layers_ + layer) * pages_of_layer_ + pages[cluster],
          pages[cluster + 1] - pages[cluster]};
}

// As SyntheticContext::QueryRow().
std::vector<int32_t> DrawnPageUse::Retrieved(uint32_t sequence, uint32_t layer, uint32_t head,
                                             uint64_t step) const {
  const uint64_t set = uint64_t{layer} * num_sets_ / num_layers_;
  const uint64_t row =
      set * kQueriesOfSet + (step + layer * 37 + (sequence + 1) * 101) % kQueriesOfSet;
  const auto cells =
      cells_.begin() + static_cast<ptrdiff_t>((row * kHeads + head) * cells_of_step_);
  std::vector<int32_t> clusters;
  // The first cell is retrieved in part: what the others leave.
  for (uint32_t i = cells_of_step_; i-- > 0;) {
    for (uint32_t j = 0; j < clusters_of_cell_ && clusters.size() < num_retrieved_; ++j) {
      clusters.push_back(static_cast<int32_t>(cells[i] * clusters_of_cell_ + j));
    }
  }
  return clusters;
}

}  // namespace retroinfer::test_support
