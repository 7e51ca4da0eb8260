// Attention of one new token of every sequence of a batch, over up to three parts that are merged
// by (running maximum, sum) as in FlashDecoding:
//   1. the dense zone: sink and local window (policy `full`: the whole context);
//   2. the execution buffer: pages of retrieved clusters, wherever they lie in device memory;
//   3. the estimation zone, computed beforehand (see estimate.h).
// Of the dense zone's window a call can attend to the newest tokens alone; a logit without a value
// can take part in each head's softmax.
// Bound by memory: reads each KV byte of parts 1 and 2 once for the whole group of query heads.
#pragma once

#include <cstdint>

#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/row_run.h"

namespace retroinfer {

// A page of the execution buffer, or what of it is one cluster's. The values of its tokens are
// PageLayout::values_offset behind their keys, whichever key is the first.
struct PageRef {
  const std::byte* page;  // device address of the first key
  int32_t num_tokens;     // 0 of an absent page, else 1 to tokens_per_page; no other token is read
  uint32_t origin;        // PageOrigin(); nobody computes with it
};

// Where a page comes from: its place among the pages of its cluster, and whether the look-up missed
// it.
constexpr uint32_t PageOrigin(uint32_t place, bool is_missed) {
  return place << 1 | (is_missed ? 1u : 0u);
}
constexpr bool IsMissed(uint32_t origin) { return (origin & 1u) != 0; }
constexpr uint32_t PlaceInCluster(uint32_t origin) { return origin >> 1; }

// What attention over one part yields before normalisation, for every (sequence, query head):
// max m = max_i x_i, sum = sum_i w_i exp(x_i - m), acc = sum_i exp(x_i - m) v_i. An empty part has
// max -inf, sum 0, acc 0.
struct AttentionPartialView {
  DeviceSpan<float> max;  // [batch, query_heads]
  DeviceSpan<float> sum;  // [batch, query_heads]
  DeviceSpan<float> acc;  // [batch, query_heads, head_dim]
};

// Sums of exponentials alone: sum = sum_i w_i exp(x_i - max).
struct ExpSumView {
  DeviceSpan<float> max;  // [batch, query_heads]
  DeviceSpan<float> sum;  // [batch, query_heads]
};

struct DecodeAttentionArgs {
  MatrixView queries;  // [batch, query_heads * head_dim], activation dtype, after RoPE
  DensePoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const DenseZone> zones;  // [batch]
  // Execution buffer; empty spans where the policy has none.
  DeviceSpan<const PageRef> pages;      // [batch, kv_heads, max_pages]
  DeviceSpan<const int32_t> num_pages;  // [batch, kv_heads]
  int64_t max_pages = 0;
  // Runs of rows of which no page is attended here: shared_page_attention.h did so, and `estimate`
  // has what came of it.
  DeviceSpan<const RowRun> runs;
  // Estimate; empty spans where the policy has none.
  AttentionPartialView estimate;
  // The mass that parts 1 and 2 leave out, as predicted (unseen_mass.h), and where its share of
  // theirs and it goes, from 0 to 1; 0 where both are nothing. Empty spans: nobody asks.
  ExpSumView unseen;
  DeviceSpan<float> unseen_share;  // [batch, query_heads]
  // Another stream's, after which `estimate` and `unseen` are there; null: they are. Attention
  // over the other parts does not wait for it.
  const Event* estimate_ready = nullptr;
  float scale = 0;  // of scores
  // Newest tokens of a zone's window that are attended; those before them are not, and the zone's
  // sink always is. 0: all.
  int32_t window = 0;
  // A logit of each query head that takes part in the softmax and has no value: [query_heads].
  // Empty: there is none. Of `unseen_share` it counts as attended.
  DeviceSpan<const float> sinks = {};
  MatrixView out;                 // [batch, query_heads * head_dim], activation dtype
  DeviceSpan<std::byte> scratch;  // at least DecodeAttentionScratchBytes(...) of the backend
};

}  // namespace retroinfer
