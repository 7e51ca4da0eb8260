// Scores every cluster of a sequence for every query head: score = scale * q . C.
//
// For the ranking, optionally, also score + radius_weight * scale * |q| * radius: with weight 1 an
// upper bound of scale * q . k over the cluster's members (Cauchy and Schwarz), with less a
// compromise between that and the mean. Bound by memory: reads each centroid once for the whole
// group of query heads (1/32 of the KV). Neighbouring rows with the same list of blocks (drafts and
// scored tokens of one sequence) may be read for together; what a row gets is what it gets alone.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct CentroidScoreArgs {
  MatrixView queries;  // [batch, query_heads * head_dim], activation dtype, after RoPE
  MetaPoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const MetaIndexView> indexes;  // [batch]
  bool share_an_index = false;              // all of them are one; a hint
  float scale = 0;                          // 1 / sqrt(head_dim)
  int64_t max_clusters = 0;                 // row length of `scores`; multiple of 64
  DeviceSpan<float> scores;  // [batch, query_heads, max_clusters]; -inf for empty clusters; places
                             // from 64 * num_blocks on are not written
  float radius_weight = 0;   // >= 0
  DeviceSpan<float> ranks;   // as `scores`; needed if radius_weight is not 0, else not written
};

}  // namespace retroinfer
