// Attention to shared pages in f32, for tests and comparisons: a warp has a query, a lane a few
// numbers of the head, and tokens come one after the other.
#include <cuda_bf16.h>

#include <cmath>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/ops/attention/cuda/shared_page_attention_kernels.h"

namespace retroinfer::cuda {
namespace {

// blockIdx.x: query head; .y: row of a run.
template <int kHeadDim>
__global__ void __launch_bounds__(32) PlainKernel(const __grid_constant__ SharedPageLaunch launch) {
  constexpr int kDims = kHeadDim / 32;
  constexpr int kTokens = static_cast<int>(kPageBytes) / (2 * kHeadDim * 4);
  const RowRun run = launch.runs[blockIdx.y / kMaxRowsOfRun];
  const auto row = static_cast<int>(blockIdx.y % kMaxRowsOfRun);
  if (row >= run.num_rows) return;
  const auto head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const int64_t list = int64_t{run.first_row} * launch.kv_heads + head / launch.group;
  const int64_t query = int64_t{run.first_row + row} * launch.query_heads() + head;
  const auto* queries = reinterpret_cast<const __nv_bfloat16*>(launch.queries) +
                        (run.first_row + row) * launch.query_stride + int64_t{head} * kHeadDim;
  float of_query[kDims], acc[kDims];
  float sum = launch.sum[query];
  float max = sum > 0 ? launch.max[query] : -INFINITY;
  for (int i = 0; i < kDims; ++i) {
    of_query[i] = __bfloat162float(queries[kDims * lane + i]) * launch.scale;
    acc[i] = sum > 0 ? launch.acc[query * kHeadDim + kDims * lane + i] : 0;
  }
  for (int p = 0; p < launch.num_pages[list]; ++p) {
    const PageRef ref = launch.pages[list * launch.max_pages + p];
    const auto* keys = reinterpret_cast<const float*>(ref.page) + kDims * lane;
    for (int t = 0; t < ref.num_tokens; ++t) {
      const float* key = keys + t * kHeadDim;
      const float* value = key + kTokens * kHeadDim;
      float score = 0;
      for (int i = 0; i < kDims; ++i) score += of_query[i] * key[i];
      for (int step = 1; step < 32; step *= 2) score += __shfl_xor_sync(~0u, score, step);
      const float raised = fmaxf(max, score);
      const float kept = max == -INFINITY ? 0 : expf(max - raised);
      const float weight = expf(score - raised);
      max = raised;
      sum = sum * kept + weight;
      for (int i = 0; i < kDims; ++i) acc[i] = acc[i] * kept + weight * value[i];
    }
  }
  for (int i = 0; i < kDims; ++i) launch.acc[query * kHeadDim + kDims * lane + i] = acc[i];
  if (lane != 0) return;
  launch.max[query] = max;
  launch.sum[query] = sum;
}

}  // namespace

cudaError_t LaunchSharedPagesPlain(const SharedPageLaunch& launch, uint32_t head_dim,
                                   cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(launch.query_heads()),
                  static_cast<unsigned>(launch.num_runs * kMaxRowsOfRun));
  auto* const kernel = head_dim == 256   ? &PlainKernel<256>
                       : head_dim == 128 ? &PlainKernel<128>
                                         : &PlainKernel<64>;
  kernel<<<grid, 32, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
