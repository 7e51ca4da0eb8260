// Synthetic contexts whose queries retrieve what ReuseWalk draws, through scoring and selection as
// they are.
//
// Each cluster of 16 tokens has a direction of its own, and the key that clustering begins with is
// in it, so clusters come out as they were meant. Clusters that follow each other are a cell, whose
// directions are close together. A query is the combination of its cells' directions whose product
// with each is one; that with the other cells is small as long as a query head has few cells, so
// cells are as large as that takes. Query heads of a group share the cells of a step.
//
// Generated tokens get keys of clusters that no query asks for: those of a model with random
// weights would take the softmax of single query heads, and clusters that nobody drew would be
// retrieved.
//
// Every sequence and every layer get the same tokens; layers have queries by the layer of the trace
// that lies as deep.
#pragma once

#include <cstddef>

#include "gpu_worker/measuring/synthetic/recorded_reuse.h"
#include "gpu_worker/measuring/synthetic/synthetic_tables.h"

namespace retroinfer {

// How the clusters of a context are divided.
struct CellPlan {
  size_t num_clusters = 0;  // that are indexed
  size_t clusters_of_cell = 0;
  size_t num_cells = 0;
  size_t cells_of_step = 0;  // of a KV head
  // Whether the first of these is the same in every step and is retrieved in part, so that what the
  // others do not fill comes from no other cell.
  bool has_constant = false;
  double constant_share = 0;  // of what a step retrieves
};
CellPlan PlanCells(const SyntheticShape& shape);

SyntheticSizes CellSizes(const SyntheticShape& shape);
// The trace whose statistics a layer's KV head has.
const HeadReuse& ReuseOfHead(const RecordedReuse& reuse, size_t query_set, size_t num_query_sets,
                             size_t head, size_t num_kv_heads);
SyntheticTables MakeCellTables(const SyntheticShape& shape);

}  // namespace retroinfer
