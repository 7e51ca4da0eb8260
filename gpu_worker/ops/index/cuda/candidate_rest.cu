// What candidates hold beside the chosen pages. Bound by latency: reads 4 bytes a page and query
// head, which lie in the L2 cache; a decode step runs it beside the look-up of pages.
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/exp_sum.cuh"
#include "gpu_worker/ops/index/cuda/page_select.h"
#include "gpu_worker/ops/index/cuda/page_select_params.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kRestThreads = 128;

// A thread for each candidate and query head. grid: [query_heads, parts, batch]
__global__ void __launch_bounds__(kRestThreads) FindRests(const PageSelectParams params) {
  const int64_t query_row = static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x;
  const int64_t row = query_row / params.group;
  const auto at = static_cast<int32_t>(blockIdx.y * kRestThreads + threadIdx.x);
  const int32_t num_candidates =
      static_cast<int32_t>(min(int64_t{params.num_candidates[row]}, params.max_candidates));
  if (at >= num_candidates) return;
  const auto cluster = static_cast<uint32_t>(params.candidates[row * params.max_candidates + at]);
  const int32_t* const first_pages = params.first_pages + row * params.max_candidates;
  const int32_t first = first_pages[at];
  const int32_t end = at + 1 < num_candidates ? first_pages[at + 1] : params.num_pages[row];
  const MetaBlockId block =
      BlockOf(params.indexes[blockIdx.z], static_cast<int32_t>(cluster / kClustersPerMetaBlock));
  const uint32_t num_tokens =
      params.runs
          .Entries(
              block, params.layer,
              blockIdx.x / static_cast<uint32_t>(params.group))[cluster % kClustersPerMetaBlock]
          .num_tokens;
  const float* const rests = params.rests + query_row * params.max_pages;
  ExpSum sum{-INFINITY, 0};
  for (int32_t place = first; place < end; ++place) {
    const float rest = rests[place];
    if (rest > -INFINITY) sum = Merge(sum, {rest, 1});
  }
  params.scores[query_row * params.max_clusters + cluster] =
      sum.max == -INFINITY ? -INFINITY
                           : sum.max + logf(sum.sum) - logf(static_cast<float>(num_tokens));
}

}  // namespace

absl::Status CandidateRest(CudaStream& stream, const PageSelectArgs& args) {
  RETURN_IF_ERROR(CheckCudaPageSelect(args));
  if (args.queries.rows == 0 || args.max_candidates == 0) return absl::OkStatus();
  const PageSelectParams params = ParamsOf(args);
  const dim3 grid(args.pool.geometry.num_kv_heads * static_cast<uint32_t>(params.group),
                  static_cast<uint32_t>(DivideUp(args.max_candidates, kRestThreads)),
                  static_cast<uint32_t>(args.queries.rows));
  FindRests<<<grid, kRestThreads, 0, stream.get()>>>(params);
  return LaunchStatus("candidate_rest");
}

}  // namespace retroinfer::cuda
