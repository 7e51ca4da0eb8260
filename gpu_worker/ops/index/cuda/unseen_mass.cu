// A block works on a row, a (sequence, query head): all clusters, and the retrieved ones again.
// Which thread adds what depends on the row alone, so its result does not depend on the batch.
// Bound by latency; a decode step runs it beside the look-up of pages.
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/meta_runs.cuh"
#include "gpu_worker/ops/index/cuda/exp_sum.cuh"
#include "gpu_worker/ops/index/cuda/unseen_mass.h"
#include "gpu_worker/ops/index/unseen_mass_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32);  // one for each lane of the warp that merges
constexpr int kAtOnce = 8;    // clusters of a thread whose loads are under way

struct MassParams {
  MetaRuns runs;
  const MetaIndexView* indexes;
  uint32_t layer;
  int32_t group;
  int32_t num_query_heads;
  const float* scores;
  int64_t max_clusters;
  const int32_t* retrieved;
  const int32_t* num_retrieved;
  int64_t max_retrieved;
  float* max;
  float* sum;
};

// The clusters of one sequence and KV head.
struct Clusters {
  const MetaRuns& runs;
  const MetaIndexView index;
  uint32_t layer;
  uint32_t head;

  __device__ float Size(int32_t cluster) const {
    const auto at = static_cast<uint32_t>(cluster);
    const MetaBlockId block = index.block_ids[at / kClustersPerMetaBlock];
    return static_cast<float>(
        runs.Entries(block, layer, head)[at % kClustersPerMetaBlock].num_tokens);
  }
};

// Adds clusters to a sum; those of size 0 and score -inf are none.
__device__ ExpSum Add(ExpSum sum, const float (&x)[kAtOnce], const float (&sizes)[kAtOnce]) {
  float max = sum.max;
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) max = fmaxf(max, x[j]);
  if (max == -INFINITY) return sum;
  float added = 0;
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) added += sizes[j] * Exp(x[j] - max);
  return {max, sum.sum * Exp(sum.max - max) + added};
}

// This thread's share of a row's clusters: every kThreads-th of `count` of them, of which `which`
// says the numbers.
template <typename Which>
__device__ ExpSum SumOfShare(const float* scores, int32_t count, const Clusters& clusters,
                             Which which) {
  ExpSum sum{-INFINITY, 0};
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kAtOnce * kThreads) {
    float x[kAtOnce], sizes[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool is_cluster = i + j * kThreads < count;
      const int32_t cluster = is_cluster ? which(i + j * kThreads) : 0;
      x[j] = is_cluster ? scores[cluster] : -INFINITY;
      sizes[j] = is_cluster ? clusters.Size(cluster) : 0;
    }
    sum = Add(sum, x, sizes);
  }
  return sum;
}

// Merges a sum of each thread; the first warp gets the result.
__device__ ExpSum MergeBlock(ExpSum sum, ExpSum (&of_warp)[kWarps]) {
  sum = MergeLanes(sum, 32);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  return MergeLanes(of_warp[threadIdx.x % 32], 32);
}

// grid: [batch * query_heads]
__global__ void __launch_bounds__(kThreads) UnseenMassRow(const MassParams params) {
  __shared__ ExpSum all_of_warp[kWarps], retrieved_of_warp[kWarps];
  const int64_t query_row = blockIdx.x;
  const int64_t row = query_row / params.group;
  const int64_t sequence = query_row / params.num_query_heads;
  const Clusters clusters{params.runs, params.indexes[sequence], params.layer,
                          static_cast<uint32_t>(query_row % params.num_query_heads / params.group)};
  const auto count = static_cast<int32_t>(min(
      int64_t{clusters.index.num_blocks} * int64_t{kClustersPerMetaBlock}, params.max_clusters));
  const float* scores = params.scores + query_row * params.max_clusters;
  const int32_t* numbers = params.retrieved + row * params.max_retrieved;
  // Both begin to load before either has been added up.
  const ExpSum of_retrieved = SumOfShare(scores, params.num_retrieved[row], clusters,
                                         [&](int32_t i) { return numbers[i]; });
  const ExpSum of_all = SumOfShare(scores, count, clusters, [](int32_t i) { return i; });
  const ExpSum retrieved = MergeBlock(of_retrieved, retrieved_of_warp);
  const ExpSum all = MergeBlock(of_all, all_of_warp);
  if (threadIdx.x != 0) return;
  params.max[query_row] = all.max;
  params.sum[query_row] =
      all.max == -INFINITY ? 0 : fmaxf(all.sum - retrieved.sum * Exp(retrieved.max - all.max), 0);
}

}  // namespace

absl::Status UnseenMass(CudaStream& stream, const UnseenMassArgs& args) {
  RETURN_IF_ERROR(CheckUnseenMass(args));
  if (args.batch == 0) return absl::OkStatus();
  const MassParams params{
      .runs = MetaRuns(args.pool),
      .indexes = args.indexes.device_data(),
      .layer = args.layer,
      .group = args.num_query_heads / static_cast<int32_t>(args.pool.geometry.num_kv_heads),
      .num_query_heads = args.num_query_heads,
      .scores = args.scores.device_data(),
      .max_clusters = args.max_clusters,
      .retrieved = args.retrieved.device_data(),
      .num_retrieved = args.num_retrieved.device_data(),
      .max_retrieved = args.max_retrieved,
      .max = args.out.max.device_data(),
      .sum = args.out.sum.device_data(),
  };
  const auto rows = static_cast<unsigned>(args.batch * args.num_query_heads);
  UnseenMassRow<<<rows, kThreads, 0, stream.get()>>>(params);
  return CudaStatus(cudaGetLastError(), "unseen_mass");
}

}  // namespace retroinfer::cuda
