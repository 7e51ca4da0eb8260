// Invariants:
// * A cluster's rank is the logarithm of its weight: max_g or log sum_g exp of (x_g - log-sum-exp
// of
//   head g). It is finite for a live cluster, however small its weight; -inf for an empty one.
// * A cluster's key is (rank, place) in one 64-bit number, the lower place the larger key. Keys are
//   unique, so "the n-th largest key" chooses exactly n clusters, and ties go to the first ones.
// One block works on one (sequence, KV head). Bound by latency: reads 4 * group * clusters bytes of
// scores twice (L2), then works on ranks in shared memory. The n-th largest key is found by a
// histogram of 2048 equal steps between the smallest and the largest rank, which leaves a few
// candidates that are compared with each other; where there are too many (ties), by radix
// selection.
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cluster_select_check.h"
#include "gpu_worker/ops/cuda/cluster_select.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxGroup = 8;
constexpr int kBins = 2 * kThreads;
constexpr int kMaxCandidates = 512;
constexpr float kRankRange = 64.0f;  // below the largest rank; smaller ones share the lowest bin
constexpr int64_t kMaxSharedClusters = 24 * 1024;  // else ranks lie in scratch memory
constexpr uint64_t kNoKey = UINT64_MAX;
constexpr uint32_t kAllLanes = 0xffffffffu;

struct SelectParams {
  const float* scores;
  int64_t max_clusters;
  int32_t group;
  int32_t num_kv_heads;
  const SelectionBudget* budgets;
  int64_t max_retrieved;
  int64_t max_estimated;
  int32_t* retrieved;
  int32_t* num_retrieved;
  int32_t* estimated;
  int32_t* num_estimated;
  float* scratch;  // [rows, 2 * max_clusters]; null: ranks in shared memory
};

// Maximum and sum of exp(x - max) of some scores.
struct ExpSum {
  float max;
  float sum;
};

// To a few units in the last place: ranks need no more.
__device__ float Exp(float x) { return __expf(x); }

__device__ ExpSum Merge(const ExpSum& a, const ExpSum& b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {-INFINITY, 0};
  return {max, a.sum * Exp(a.max - max) + b.sum * Exp(b.max - max)};
}

using Scan = cub::BlockScan<int32_t, kThreads>;

struct Shared {
  union {
    ExpSum of_warp[kWarps];
    Scan::TempStorage scan;
    int32_t zone_sizes[2][kWarps];
  };
  float log_sums[kMaxGroup];
  float least[kWarps];
  float most[kWarps];
  int32_t live[kWarps];
  uint32_t histogram[kBins];
  uint64_t candidates[2][kMaxCandidates];
  int32_t num_candidates[2];
  int32_t bin[2];
  int32_t wanted[2];  // place of the threshold among the keys of its bin, from 1
  uint64_t threshold[2];
};

// Logarithm of the sum of exp(score) of each head of the group.
__device__ void FindLogSums(const SelectParams& params, const float* scores, int32_t count,
                            Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int slots = params.group > 4 ? 8 : params.group > 2 ? 4 : params.group;
  const int warps_per_head = kWarps / slots;
  const int head = warp / warps_per_head;
  ExpSum sum{-INFINITY, 0};
  if (head < params.group) {
    const auto* row = reinterpret_cast<const float4*>(scores + head * params.max_clusters);
    const int step = warps_per_head * 32;
    constexpr int kAtOnce = 4;
    for (int i = warp % warps_per_head * 32 + lane; i < count / 4; i += kAtOnce * step) {
      float4 x[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const float none = -INFINITY;
        x[j] = i + j * step < count / 4 ? row[i + j * step] : float4{none, none, none, none};
      }
      float max = sum.max;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        max = fmaxf(max, fmaxf(fmaxf(x[j].x, x[j].y), fmaxf(x[j].z, x[j].w)));
      }
      if (max == -INFINITY) continue;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        added += Exp(x[j].x - max) + Exp(x[j].y - max) + Exp(x[j].z - max) + Exp(x[j].w - max);
      }
      sum = {max, sum.sum * Exp(sum.max - max) + added};
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    sum = Merge(sum, {__shfl_xor_sync(kAllLanes, sum.max, step),
                      __shfl_xor_sync(kAllLanes, sum.sum, step)});
  }
  if (lane == 0) shared.of_warp[warp] = sum;
  __syncthreads();
  if (threadIdx.x < params.group) {
    ExpSum all{-INFINITY, 0};
    for (int i = 0; i < warps_per_head; ++i) {
      all = Merge(all, shared.of_warp[static_cast<int>(threadIdx.x) * warps_per_head + i]);
    }
    // A head without live clusters wants none.
    shared.log_sums[threadIdx.x] = all.max == -INFINITY ? INFINITY : all.max + logf(all.sum);
  }
  __syncthreads();
}

// The rank that a cluster's weights give.
template <int kHeads>
__device__ float RankOf(const float (&weights)[kHeads], int32_t group, GroupRanking ranking) {
  float max = -INFINITY;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    if (g < group) max = fmaxf(max, weights[g]);
  }
  if (ranking == GroupRanking::kMaxOfSoftmax || max == -INFINITY) return max;
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    if (g < group) sum += Exp(weights[g] - max);
  }
  return max + logf(sum);
}

struct RankRange {
  float least;
  float most;
  int32_t num_live;
};

// Writes all ranks; returns the range of those of live clusters.
template <int kHeads>
__device__ RankRange FindRanks(const SelectParams& params, const float* scores, int32_t count,
                               GroupRanking ranking, float* ranks, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  RankRange range{INFINITY, -INFINITY, 0};
  // Four clusters at a time: as many loads of 16 bytes are under way as there are heads.
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count / 4; i += kThreads) {
    float4 quads[kHeads];
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      if (g < params.group) {
        quads[g] = reinterpret_cast<const float4*>(scores + g * params.max_clusters)[i];
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float weights[kHeads];
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        if (g < params.group) weights[g] = (&quads[g].x)[j] - shared.log_sums[g];
      }
      float rank = RankOf<kHeads>(weights, params.group, ranking);
      const bool is_live = rank > -INFINITY && rank < INFINITY;
      if (!is_live) rank = -INFINITY;
      ranks[4 * i + j] = rank;
      if (is_live) {
        range = {fminf(range.least, rank), fmaxf(range.most, rank), range.num_live + 1};
      }
    }
  }
  const auto reduce = [](RankRange a, const RankRange& b) {
    return RankRange{fminf(a.least, b.least), fmaxf(a.most, b.most), a.num_live + b.num_live};
  };
  const auto reduce_warp = [&](RankRange a) {
    for (int step = 16; step > 0; step /= 2) {
      a = reduce(
          a, {__shfl_xor_sync(kAllLanes, a.least, step), __shfl_xor_sync(kAllLanes, a.most, step),
              __shfl_xor_sync(kAllLanes, a.num_live, step)});
    }
    return a;
  };
  range = reduce_warp(range);
  if (lane == 0) {
    shared.least[warp] = range.least;
    shared.most[warp] = range.most;
    shared.live[warp] = range.num_live;
  }
  __syncthreads();
  return reduce_warp({shared.least[lane], shared.most[lane], shared.live[lane]});
}

// The bin of a rank: never smaller for a larger rank.
struct Binning {
  float least;
  float factor;

  explicit __device__ Binning(const RankRange& range)
      : least(fmaxf(range.least, range.most - kRankRange)),
        factor(range.most > least ? static_cast<float>(kBins - 1) / (range.most - least) : 0) {}
  __device__ int32_t Of(float rank) const {
    return min(max(__float2int_rz((rank - least) * factor), 0), kBins - 1);
  }
};

__device__ uint64_t KeyOf(float rank, int32_t place) {
  const uint32_t bits = __float_as_uint(rank);
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(place));
}

// Finds the bins of the numbers[k]-th largest ranks. REQUIRES: 1 <= numbers[k] <= live places.
__device__ void FindBins(const int32_t (&numbers)[2], Shared& shared) {
  const int last = kBins - 1 - 2 * static_cast<int>(threadIdx.x);  // this thread's upper bin
  const int32_t upper = static_cast<int32_t>(shared.histogram[last]);
  const int32_t lower = static_cast<int32_t>(shared.histogram[last - 1]);
  int32_t above = 0;
  Scan(shared.scan).ExclusiveSum(upper + lower, above);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int32_t n = numbers[k];
    if (n > above && n <= above + upper) {
      shared.bin[k] = last;
      shared.wanted[k] = n - above;
    } else if (n > above + upper && n <= above + upper + lower) {
      shared.bin[k] = last - 1;
      shared.wanted[k] = n - above - upper;
    }
  }
  __syncthreads();
}

// The wanted-th largest key of a bin by radix selection, 8 bits at a time.
__device__ uint64_t RadixSelect(const float* ranks, int32_t count, const Binning& binning,
                                int32_t bin, int32_t wanted, Shared& shared) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) shared.histogram[threadIdx.x] = 0;
    __syncthreads();
    const uint64_t mask = shift == 56 ? 0 : kNoKey << (shift + 8);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
      const float rank = ranks[i];
      const uint64_t key = KeyOf(rank, i);
      if (rank == -INFINITY || binning.Of(rank) != bin || (key & mask) != prefix) continue;
      const auto digit = static_cast<uint32_t>(key >> shift) & 255;
      const uint32_t peers = __match_any_sync(__activemask(), digit);
      if (static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&shared.histogram[digit], static_cast<uint32_t>(__popc(peers)));
      }
    }
    __syncthreads();
    uint32_t digit = 255;  // every thread finds the same one
    for (; digit > 0 && static_cast<int32_t>(shared.histogram[digit]) < wanted; --digit) {
      wanted -= static_cast<int32_t>(shared.histogram[digit]);
    }
    prefix |= uint64_t{digit} << shift;
    __syncthreads();
  }
  return prefix;
}

// Finds the numbers[k]-th largest keys; kNoKey where the number is 0.
__device__ void FindThresholds(const float* ranks, int32_t count, const RankRange& range,
                               const int32_t (&numbers)[2], Shared& shared) {
  const Binning binning(range);
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.histogram[i] = 0;
  if (threadIdx.x < 2) {
    shared.num_candidates[threadIdx.x] = 0;
    shared.bin[threadIdx.x] = -1;
    shared.threshold[threadIdx.x] = kNoKey;
  }
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    if (ranks[i] > -INFINITY) atomicAdd(&shared.histogram[binning.Of(ranks[i])], 1u);
  }
  __syncthreads();
  FindBins(numbers, shared);
  const int32_t bins[2] = {shared.bin[0], shared.bin[1]};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    const float rank = ranks[i];
    if (rank == -INFINITY) continue;
    const int32_t bin = binning.Of(rank);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (bin != bins[k]) continue;
      const int32_t at = atomicAdd(&shared.num_candidates[k], 1);
      if (at < kMaxCandidates) shared.candidates[k][at] = KeyOf(rank, i);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < 2; ++k) {
    if (bins[k] < 0) continue;
    const int32_t num_candidates = shared.num_candidates[k];
    if (num_candidates > kMaxCandidates) {
      const uint64_t key = RadixSelect(ranks, count, binning, bins[k], shared.wanted[k], shared);
      if (threadIdx.x == 0) shared.threshold[k] = key;
      continue;
    }
    const int32_t i = static_cast<int32_t>(threadIdx.x) - k * kMaxCandidates;
    if (i < 0 || i >= num_candidates) continue;
    const uint64_t key = shared.candidates[k][i];
    int32_t above = 0;
    for (int32_t j = 0; j < num_candidates; ++j) above += shared.candidates[k][j] > key ? 1 : 0;
    if (above == shared.wanted[k] - 1) shared.threshold[k] = key;
  }
  __syncthreads();
}

// Calls visit(place, key) for each place of this warp's share, all lanes together.
template <typename Visit>
__device__ void ForWarpShare(const float* ranks, int32_t count, Visit visit) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int32_t groups = count / 32;
  const int32_t end = groups * (warp + 1) / kWarps;
  for (int32_t i = groups * warp / kWarps; i < end; ++i) {
    visit(i * 32 + lane, KeyOf(ranks[i * 32 + lane], i * 32 + lane));
  }
}

// Writes both zones in cluster order.
__device__ void WriteZones(const SelectParams& params, const float* ranks, int32_t count,
                           int64_t row, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t first = shared.threshold[0], second = shared.threshold[1];
  int32_t sizes[2] = {};
  ForWarpShare(ranks, count, [&](int32_t, uint64_t key) {
    sizes[0] += __popc(__ballot_sync(kAllLanes, key >= first));
    sizes[1] += __popc(__ballot_sync(kAllLanes, key >= second && key < first));
  });
  if (lane == 0) {
    shared.zone_sizes[0][warp] = sizes[0];
    shared.zone_sizes[1][warp] = sizes[1];
  }
  __syncthreads();
  int32_t at[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int32_t size = shared.zone_sizes[k][lane];
    at[k] = __reduce_add_sync(kAllLanes, lane < warp ? size : 0);
    const int32_t all = __reduce_add_sync(kAllLanes, size);
    if (threadIdx.x == 0) (k == 0 ? params.num_retrieved : params.num_estimated)[row] = all;
  }
  int32_t* retrieved = params.retrieved + row * params.max_retrieved;
  int32_t* estimated = params.estimated + row * params.max_estimated;
  const uint32_t before = (1u << lane) - 1;
  ForWarpShare(ranks, count, [&](int32_t place, uint64_t key) {
    const bool is_first = key >= first;
    const bool is_second = key >= second && !is_first;
    const uint32_t firsts = __ballot_sync(kAllLanes, is_first);
    const uint32_t seconds = __ballot_sync(kAllLanes, is_second);
    if (is_first) retrieved[at[0] + __popc(firsts & before)] = place;
    if (is_second) estimated[at[1] + __popc(seconds & before)] = place;
    at[0] += __popc(firsts);
    at[1] += __popc(seconds);
  });
}

// grid: [batch * kv_heads]. kHeads: at least the group.
template <int kHeads>
__global__ void __launch_bounds__(kThreads, 1) SelectRow(const SelectParams params) {
  __shared__ Shared shared;
  extern __shared__ float shared_ranks[];
  const int64_t row = blockIdx.x;
  const int64_t sequence = row / params.num_kv_heads;
  const SelectionBudget budget = params.budgets[sequence];
  // Budgets come from the host's own plan, but memory past a row belongs to another.
  const auto count =
      static_cast<int32_t>(min(max(int64_t{budget.num_clusters}, int64_t{0}), params.max_clusters));
  const float* scores = params.scores + row * params.group * params.max_clusters;
  float* ranks =
      params.scratch == nullptr ? shared_ranks : params.scratch + row * 2 * params.max_clusters;

  FindLogSums(params, scores, count, shared);
  const RankRange range = FindRanks<kHeads>(params, scores, count, budget.ranking, ranks, shared);
  const auto r = static_cast<int32_t>(min(int64_t{budget.num_retrieved}, params.max_retrieved));
  const auto e = static_cast<int32_t>(min(int64_t{budget.num_estimated}, params.max_estimated));
  const int32_t numbers[2] = {min(r, range.num_live), min(r + e, range.num_live)};
  if (numbers[1] <= 0) {
    if (threadIdx.x == 0) params.num_retrieved[row] = params.num_estimated[row] = 0;
    return;
  }
  FindThresholds(ranks, count, range, numbers, shared);
  WriteZones(params, ranks, count, row, shared);
}

}  // namespace

absl::Status ClusterSelect(CudaStream& stream, const ClusterSelectArgs& args) {
  RETURN_IF_ERROR(CheckClusterSelect(args));
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(group <= kMaxGroup, "cluster_select",
                           "needs at most 8 query heads for each KV head, has ", group));
  if (args.batch == 0) return absl::OkStatus();
  const bool in_shared = args.max_clusters <= kMaxSharedClusters;
  const SelectParams params{
      .scores = args.scores.device_data(),
      .max_clusters = args.max_clusters,
      .group = group,
      .num_kv_heads = args.num_kv_heads,
      .budgets = args.budgets.device_data(),
      .max_retrieved = args.max_retrieved,
      .max_estimated = args.max_estimated,
      .retrieved = args.retrieved.device_data(),
      .num_retrieved = args.num_retrieved.device_data(),
      .estimated = args.estimated.device_data(),
      .num_estimated = args.num_estimated.device_data(),
      .scratch = in_shared ? nullptr : reinterpret_cast<float*>(args.scratch.device_data()),
  };
  const size_t shared_bytes =
      in_shared ? static_cast<size_t>(args.max_clusters) * sizeof(float) : 0;
  const auto kernel = group <= 2 ? SelectRow<2> : group <= 4 ? SelectRow<4> : SelectRow<kMaxGroup>;
  RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(kMaxSharedClusters * sizeof(float))));
  kernel<<<static_cast<uint32_t>(args.batch * args.num_kv_heads), kThreads, shared_bytes,
           stream.get()>>>(params);
  return CudaStatus(cudaGetLastError(), "cluster_select");
}

}  // namespace retroinfer::cuda
