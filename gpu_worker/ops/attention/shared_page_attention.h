// Attention of runs of rows (row_run.h) to the pages of the clusters that they share: each row of a
// run to all tokens of the list of its first row. What comes of it is added to partial results that
// are there already, those of the estimation zone; decode_attention.h adds the dense zone.
// Bound by products: a page is read for 16 to 128 queries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/row_run.h"

namespace retroinfer {

struct SharedPageAttentionArgs {
  MatrixView queries;  // [batch, query_heads * head_dim], activation dtype, after RoPE
  KvGeometry geometry;
  DeviceSpan<const RowRun> runs;  // of the batch, no two with a row in common
  // Execution buffer, of which the lists of first rows are read.
  DeviceSpan<const PageRef> pages;      // [batch, kv_heads, max_pages]
  DeviceSpan<const int32_t> num_pages;  // [batch, kv_heads]
  int64_t max_pages = 0;
  float scale = 0;                // of scores
  AttentionPartialView sums;      // read and written; of other rows than the runs' neither
  DeviceSpan<std::byte> scratch;  // at least SharedPageAttentionScratchBytes(...) of the backend
};

}  // namespace retroinfer
