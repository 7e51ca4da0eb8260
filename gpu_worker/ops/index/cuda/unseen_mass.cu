// A row, a (sequence, query head), is summed up as kParts parts, each by kPartThreads threads; the
// retrieved clusters are summed up again. One block works on all parts of a row, or, where few rows
// are long, a thread block cluster of several. What is added in which order depends on the row
// alone, so its result depends neither on the batch nor on how many blocks there are.
// Bound by latency; a decode step runs it beside the look-up of pages.
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/meta_runs.cuh"
#include "gpu_worker/ops/index/cuda/exp_sum.cuh"
#include "gpu_worker/ops/index/cuda/row_parts.cuh"
#include "gpu_worker/ops/index/cuda/unseen_mass.h"
#include "gpu_worker/ops/index/unseen_mass_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kParts = 8;
constexpr int kPartThreads = 256;
constexpr int kPartWarps = kPartThreads / 32;
constexpr int kAtOnce = 8;                 // clusters of a thread whose loads are under way
static_assert(kParts * kPartWarps == 64);  // two for each lane of the warp that merges
constexpr int32_t kFewRows = 64;
constexpr int64_t kLong = 16 * 1024;  // clusters

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

// This thread's share of `count` clusters, of which `which` says the numbers: every `step`-th from
// number `first` on.
template <typename Which>
__device__ ExpSum SumOfShare(const float* scores, int32_t count, int32_t first, int32_t step,
                             const Clusters& clusters, Which which) {
  ExpSum sum{-INFINITY, 0};
  for (int32_t i = first; i < count; i += kAtOnce * step) {
    float x[kAtOnce], sizes[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool is_cluster = i + j * step < count;
      const int32_t cluster = is_cluster ? which(i + j * step) : 0;
      x[j] = is_cluster ? scores[cluster] : -INFINITY;
      sizes[j] = is_cluster ? clusters.Size(cluster) : 0;
    }
    sum = Add(sum, x, sizes);
  }
  return sum;
}

// The sums of the warps of a row's parts.
using WarpSums = ExpSum[kParts][kPartWarps];

// Of a warp, which all get the result.
template <int kBlocks>
__device__ ExpSum MergeRow(const WarpSums& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int part = lane / kPartWarps;
  const auto of = [&](int p) {
    return *RowParts<kBlocks>::Of(&sums[p][lane % kPartWarps], p % kBlocks);
  };
  return MergeLanes(Merge(of(part), of(part + kParts / 2)), 32);
}

// grid: [batch * query_heads][kBlocks], kPartsAtOnce * kPartThreads threads
template <int kBlocks, int kPartsAtOnce>
__global__ void __launch_bounds__(kPartsAtOnce* kPartThreads)
    UnseenMassRow(const MassParams params) {
  using Row = RowParts<kBlocks>;
  constexpr int kStep = kParts * kPartThreads;
  __shared__ WarpSums all_sums, retrieved_sums;
  const int64_t query_row = blockIdx.x / kBlocks;
  const int64_t row = query_row / params.group;
  const int64_t sequence = query_row / params.num_query_heads;
  const Clusters clusters{params.runs, params.indexes[sequence], params.layer,
                          static_cast<uint32_t>(query_row % params.num_query_heads / params.group)};
  const auto count = static_cast<int32_t>(min(
      int64_t{clusters.index.num_blocks} * int64_t{kClustersPerMetaBlock}, params.max_clusters));
  const float* scores = params.scores + query_row * params.max_clusters;
  const int32_t* numbers = params.retrieved + row * params.max_retrieved;
  const int32_t num_retrieved = params.max_retrieved == 0 ? 0 : params.num_retrieved[row];
  const auto of_part = static_cast<int32_t>(threadIdx.x % kPartThreads);
#pragma unroll 1
  for (int part = Row::Index() + kBlocks * static_cast<int>(threadIdx.x / kPartThreads);
       part < kParts; part += kBlocks * kPartsAtOnce) {
    const int32_t first = part * kPartThreads + of_part;
    // Both begin to load before either has been added up.
    const ExpSum retrieved = SumOfShare(scores, num_retrieved, first, kStep, clusters,
                                        [&](int32_t i) { return numbers[i]; });
    const ExpSum all =
        SumOfShare(scores, count, first, kStep, clusters, [](int32_t i) { return i; });
    const ExpSum of_warp[2] = {MergeLanes(all, 32), MergeLanes(retrieved, 32)};
    if (of_part % 32 == 0) {
      all_sums[part][of_part / 32] = of_warp[0];
      retrieved_sums[part][of_part / 32] = of_warp[1];
    }
  }
  Row::Sync();
  if (Row::Index() == 0 && threadIdx.x < 32) {
    const ExpSum all = MergeRow<kBlocks>(all_sums), retrieved = MergeRow<kBlocks>(retrieved_sums);
    if (threadIdx.x == 0) {
      params.max[query_row] = all.max;
      params.sum[query_row] =
          all.max == -INFINITY ? 0
                               : fmaxf(all.sum - retrieved.sum * Exp(retrieved.max - all.max), 0);
    }
  }
  if (kBlocks > 1) Row::Sync();  // no block ends while another reads its memory
}

template <int kBlocks, int kPartsAtOnce>
absl::Status Launch(cudaStream_t stream, int32_t num_rows, const MassParams& params) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<uint32_t>(num_rows * kBlocks));
  config.blockDim = dim3(kPartsAtOnce * kPartThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kBlocks > 1 ? 1 : 0;
  return CudaStatus(cudaLaunchKernelEx(&config, UnseenMassRow<kBlocks, kPartsAtOnce>, params),
                    "unseen_mass");
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
  const int32_t num_rows = args.batch * args.num_query_heads;
  // Few or long rows are summed up sooner by more blocks; what starts kernels early has clusters of
  // blocks, too.
  const bool is_cut = StartsKernelsEarly() && (num_rows <= kFewRows || args.max_clusters > kLong);
  return is_cut ? Launch<kParts, 1>(stream.get(), num_rows, params)
                : Launch<1, 4>(stream.get(), num_rows, params);
}

}  // namespace retroinfer::cuda
