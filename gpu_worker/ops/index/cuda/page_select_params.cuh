// What the kernels of a selection of pages share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/group_slice.h"
#include "gpu_worker/ops/cuda/meta_runs.cuh"
#include "gpu_worker/ops/index/cuda/code_products.cuh"
#include "gpu_worker/ops/index/page_select_check.h"

namespace retroinfer::cuda {

struct PageSelectParams {
  MetaRuns runs;
  size_t factors_offset;  // in a block's codes
  const __nv_bfloat16* queries;
  int64_t query_stride;
  const MetaIndexView* indexes;
  uint32_t layer;
  int32_t group;
  GroupSlice slice;  // of WeighPages
  float scale;
  float* scores;
  int64_t max_clusters;
  const int32_t* candidates;
  const int32_t* num_candidates;
  int64_t max_candidates;
  int32_t per_page;
  int64_t max_pages;
  float* masses;
  float* rests;
  ChosenPage* pages;
  int32_t* first_pages;
  int32_t* num_pages;
  int32_t* num_tokens;
};

// The block of this number in an index.
__device__ inline MetaBlockId BlockOf(const MetaIndexView& index, int32_t number) {
  // As the CPU's RI_CHECK.
  if (number < 0 || number >= index.num_blocks) __trap();
  return index.block_ids[number];
}

inline absl::Status CheckCudaPageSelect(const PageSelectArgs& args) {
  RETURN_IF_ERROR(CheckPageSelect(args, DType::kBf16));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  RETURN_IF_ERROR(CheckArg(args.queries.row_stride % 8 == 0, "page_select",
                           "needs rows of queries aligned to 16 bytes"));
  const uint32_t per_page = args.pool.geometry.tokens_per_page();
  return CheckArg(per_page <= kTileTokens, "page_select", "needs at most ", kTileTokens,
                  " tokens a page, has ", per_page);
}

inline PageSelectParams ParamsOf(const PageSelectArgs& args) {
  const KvGeometry& geometry = args.pool.geometry;
  const auto num_heads = static_cast<int64_t>(geometry.num_kv_heads);
  return {
      .runs = MetaRuns(args.pool),
      .factors_offset = TokenCodeLayout(geometry.format, geometry.head_dim).factors_offset,
      .queries = reinterpret_cast<const __nv_bfloat16*>(args.queries.data),
      .query_stride = args.queries.row_stride,
      .indexes = args.indexes.device_data(),
      .layer = args.layer,
      .group = static_cast<int32_t>(args.queries.cols / geometry.head_dim / num_heads),
      .slice = {},
      .scale = args.scale,
      .scores = args.scores.device_data(),
      .max_clusters = args.max_clusters,
      .candidates = args.candidates.device_data(),
      .num_candidates = args.num_candidates.device_data(),
      .max_candidates = args.max_candidates,
      .per_page = static_cast<int32_t>(geometry.tokens_per_page()),
      .max_pages = args.max_pages,
      .masses = args.scratch.masses.device_data(),
      .rests = args.scratch.rests.device_data(),
      .pages = args.scratch.pages.device_data(),
      .first_pages = args.scratch.first_pages.device_data(),
      .num_pages = args.scratch.num_pages.device_data(),
      .num_tokens = args.num_tokens.device_data(),
  };
}

}  // namespace retroinfer::cuda
