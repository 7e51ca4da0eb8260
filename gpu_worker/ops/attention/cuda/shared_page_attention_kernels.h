// What shared_page_attention.cc asks of the kernels beside it. Free of CUDA but for its types, and
// what memory planning needs is free of these, too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/kv/dtype.h"
#include "gpu_worker/ops/attention/cuda/shared_page_attention_scratch.h"
#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/row_run.h"

namespace retroinfer::cuda {

struct SharedPageLaunch {
  const std::byte* queries;  // bf16
  int64_t query_stride;      // elements
  const RowRun* runs;
  int32_t num_runs;
  const PageRef* pages;
  const int32_t* num_pages;
  int64_t max_pages;
  int32_t kv_heads;
  int32_t group;  // query heads of each
  float scale;
  // Read and written.
  float* max;
  float* sum;
  float* acc;
  // Of a part of the list: (max, sum) [batch, query_heads][kMaxSharedParts], values with head_dim
  // numbers each.
  float2* part_max_sums;
  float* part_values;

  __host__ __device__ int32_t query_heads() const { return kv_heads * group; }
};

// `element`: of keys and values, bf16, or int8 for kEightBitTokens.
cudaError_t LaunchSharedPages(const SharedPageLaunch& launch, DType element, uint32_t head_dim,
                              cudaStream_t stream);
// f32, a query of a run at a time; needs no parts.
cudaError_t LaunchSharedPagesPlain(const SharedPageLaunch& launch, uint32_t head_dim,
                                   cudaStream_t stream);

}  // namespace retroinfer::cuda
