// Invariants:
// * A cluster's rank is the logarithm of its weight: max_g or log sum_g exp of (x_g - log-sum-exp
//   of head g). It is finite for a live cluster, however small its weight; -inf for an empty one.
// * A cluster's key is (rank, place) in one 64-bit number, the lower place the larger key. Keys are
//   unique, so "the n-th largest key" chooses exactly n clusters, and ties go to the first ones.
// * How a row is cut into parts depends on its length alone, so its result does not depend on the
//   batch.
// One block works on a row, a (sequence, KV head): up to kMaxAlone clusters that is fastest. Longer
// rows are cut into eight parts where the device has clusters of blocks, which tell each other
// sums, histograms and candidates through shared memory. Bound by latency: reads 4 * group *
// clusters bytes of scores twice (L2), then works on ranks in shared memory. The n-th largest key
// is found by a histogram of 1024 equal steps between the smallest and the largest rank, which
// leaves a few candidates that are compared with each other; where there are too many (ties), by
// radix selection.
#include <algorithm>
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/index/cluster_select_check.h"
#include "gpu_worker/ops/index/cuda/cluster_ranks.cuh"
#include "gpu_worker/ops/index/cuda/cluster_select.h"
#include "gpu_worker/ops/index/cuda/row_parts.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kClusterParts = 8;          // of a long row
constexpr int64_t kMaxAlone = 16 * 1024;  // clusters of a row that one block works on
constexpr float kRankRange = 64.0f;  // below the largest rank; smaller ones share the lowest bin
constexpr int64_t kMaxSharedRanks = 24 * 1024;  // of a part; else ranks lie in scratch memory
constexpr uint64_t kNoKey = UINT64_MAX;

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

// Finds the bins of the numbers[k]-th largest ranks from all parts' histograms.
// REQUIRES: numbers[k] <= live places; 0 leaves bin[k] as it was.
template <int kParts>
__device__ void FindBins(const int32_t (&numbers)[2], SelectShared<kParts>& shared) {
  constexpr int kPerThread = kBins / kRowThreads;
  const int last = kBins - 1 - kPerThread * static_cast<int>(threadIdx.x);  // the uppermost bin
  int32_t sizes[kPerThread] = {};
  int32_t all = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint32_t* histogram = RowParts<kParts>::Of(shared.histogram, part);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const auto size = static_cast<int32_t>(histogram[last - i]);
      sizes[i] += size;
      all += size;
    }
  }
  int32_t above = 0;
  typename SelectShared<kParts>::Scan(shared.scan).ExclusiveSum(all, above);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (numbers[k] <= above || numbers[k] > above + sizes[i]) continue;
      shared.bin[k] = last - i;
      shared.wanted[k] = numbers[k] - above;
    }
    above += sizes[i];
  }
  __syncthreads();
}

// The wanted-th largest key of a bin by radix selection, 8 bits at a time.
template <int kParts>
__device__ uint64_t RadixSelect(const float* ranks, const Places& places, const Binning& binning,
                                int32_t bin, int32_t wanted, SelectShared<kParts>& shared) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) shared.histogram[threadIdx.x] = 0;
    __syncthreads();
    const uint64_t mask = shift == 56 ? 0 : kNoKey << (shift + 8);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < places.count; i += kRowThreads) {
      const float rank = ranks[i];
      const uint64_t key = KeyOf(rank, places.begin + i);
      if (rank == -INFINITY || binning.Of(rank) != bin || (key & mask) != prefix) continue;
      const auto digit = static_cast<uint32_t>(key >> shift) & 255;
      const uint32_t peers = __match_any_sync(__activemask(), digit);
      if (static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&shared.histogram[digit], static_cast<uint32_t>(__popc(peers)));
      }
    }
    RowParts<kParts>::Sync();
    if (threadIdx.x < 256) {
      uint32_t size = 0;
      for (int part = 0; part < kParts; ++part) {
        size += RowParts<kParts>::Of(shared.histogram, part)[threadIdx.x];
      }
      shared.digits[threadIdx.x] = size;
    }
    RowParts<kParts>::Sync();
    uint32_t digit = 255;  // every thread finds the same one
    for (; digit > 0 && static_cast<int32_t>(shared.digits[digit]) < wanted; --digit) {
      wanted -= static_cast<int32_t>(shared.digits[digit]);
    }
    prefix |= uint64_t{digit} << shift;
    __syncthreads();
  }
  return prefix;
}

// Lists this part's keys of both bins, as many as fit, and counts them.
template <int kParts>
__device__ void ListCandidates(const float* ranks, const Places& places, const Binning& binning,
                               const int32_t (&bins)[2], SelectShared<kParts>& shared) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < places.count; i += kRowThreads) {
    const float rank = ranks[i];
    if (rank == -INFINITY) continue;
    const int32_t bin = binning.Of(rank);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (bin != bins[k]) continue;
      const int32_t at = atomicAdd(&shared.num_part_candidates[k], 1);
      if (at < kMaxCandidates) shared.part_candidates[k][at] = KeyOf(rank, places.begin + i);
    }
  }
  RowParts<kParts>::Sync();
}

// Copies all parts' candidates for threshold k, unless they are too many. Returns their number.
template <int kParts>
__device__ int32_t GatherCandidates(int k, SelectShared<kParts>& shared) {
  int32_t sizes[kParts], all = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    sizes[part] = RowParts<kParts>::Of(shared.num_part_candidates, part)[k];
    all += sizes[part];
  }
  if (all > kMaxCandidates) return all;
  int32_t at = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint64_t* keys = RowParts<kParts>::Of(shared.part_candidates[k], part);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < sizes[part]; i += kRowThreads) {
      shared.candidates[k][at + i] = keys[i];
    }
    at += sizes[part];
  }
  return all;
}

// Finds the numbers[k]-th largest keys; kNoKey where the number is 0.
template <int kParts>
__device__ void FindThresholds(const float* ranks, const Places& places, const RankRange& range,
                               const int32_t (&numbers)[2], SelectShared<kParts>& shared) {
  const Binning binning(range);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < places.count; i += kRowThreads) {
    if (ranks[i] > -INFINITY) atomicAdd(&shared.histogram[binning.Of(ranks[i])], 1u);
  }
  RowParts<kParts>::Sync();
  FindBins(numbers, shared);
  const int32_t bins[2] = {shared.bin[0], shared.bin[1]};
  ListCandidates(ranks, places, binning, bins, shared);
  const int32_t num_candidates[2] = {GatherCandidates(0, shared), GatherCandidates(1, shared)};
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < 2; ++k) {
    if (bins[k] < 0) continue;
    if (num_candidates[k] > kMaxCandidates) {
      const uint64_t key = RadixSelect(ranks, places, binning, bins[k], shared.wanted[k], shared);
      if (threadIdx.x == 0) shared.threshold[k] = key;
      continue;
    }
    // A warp compares a candidate with all.
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    for (auto i = static_cast<int32_t>(threadIdx.x / 32); i < num_candidates[k];
         i += SelectShared<kParts>::kWarps) {
      const uint64_t key = shared.candidates[k][i];
      int32_t above = 0;
      for (int32_t j = lane; j < num_candidates[k]; j += 32) {
        above += shared.candidates[k][j] > key ? 1 : 0;
      }
      above = __reduce_add_sync(kAllLanes, above);
      if (lane == 0 && above == shared.wanted[k] - 1) shared.threshold[k] = key;
    }
  }
  __syncthreads();
}

// Calls visit(place, key) for each place of this warp's share, all lanes together.
template <int kParts, typename Visit>
__device__ void ForWarpShare(const float* ranks, const Places& places, Visit visit) {
  constexpr int kWarps = SelectShared<kParts>::kWarps;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int32_t groups = places.count / 32;
  const int32_t end = groups * (warp + 1) / kWarps;
  for (int32_t i = groups * warp / kWarps; i < end; ++i) {
    const int32_t place = places.begin + i * 32 + lane;
    visit(place, KeyOf(ranks[i * 32 + lane], place));
  }
}

// Writes both zones in cluster order, this part's share behind those of the parts before it.
template <int kParts>
__device__ void WriteZones(const SelectParams& params, const float* ranks, const Places& places,
                           int64_t row, SelectShared<kParts>& shared) {
  constexpr int kWarps = SelectShared<kParts>::kWarps;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t first = shared.threshold[0], second = shared.threshold[1];
  int32_t sizes[2] = {};
  ForWarpShare<kParts>(ranks, places, [&](int32_t, uint64_t key) {
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
    const int32_t size = lane < kWarps ? shared.zone_sizes[k][lane] : 0;
    at[k] = __reduce_add_sync(kAllLanes, lane < warp ? size : 0);
    const int32_t all = __reduce_add_sync(kAllLanes, size);
    if (threadIdx.x == 0) shared.part_zone_sizes[k] = all;
  }
  RowParts<kParts>::Sync();
  const int index = RowParts<kParts>::Index();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int32_t size = lane < kParts ? RowParts<kParts>::Of(shared.part_zone_sizes, lane)[k] : 0;
    at[k] += __reduce_add_sync(kAllLanes, lane < index ? size : 0);
    const int32_t all = __reduce_add_sync(kAllLanes, size);
    if (threadIdx.x == 0 && index == 0) {
      (k == 0 ? params.num_retrieved : params.num_estimated)[row] = all;
    }
  }
  int32_t* retrieved = params.retrieved + row * params.max_retrieved;
  int32_t* estimated = params.estimated + row * params.max_estimated;
  const uint32_t before = (1u << lane) - 1;
  ForWarpShare<kParts>(ranks, places, [&](int32_t place, uint64_t key) {
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

// grid: [batch * kv_heads * kParts], clusters of kParts. kHeads: at least the group.
template <int kHeads, int kParts>
__global__ void __launch_bounds__(kRowThreads, 1) SelectRow(const SelectParams params) {
  __shared__ SelectShared<kParts> shared;
  extern __shared__ float shared_ranks[];
  const int64_t row = blockIdx.x / kParts;
  const int64_t sequence = row / params.num_kv_heads;
  const int part = RowParts<kParts>::Index();
  AllowNextKernel();
  AwaitLastKernel();
  const SelectionBudget budget = params.budgets[sequence];
  // Budgets come from the host's own plan, but memory past a row belongs to another.
  const auto count =
      static_cast<int32_t>(min(max(int64_t{budget.num_clusters}, int64_t{0}), params.max_clusters));
  const int32_t blocks = count / 64;
  Places places{0, part == 0 ? count : 0};
  if (kParts > 1 && count > kMaxAlone) {
    places.begin = blocks * part / kParts * 64;
    places.count = blocks * (part + 1) / kParts * 64 - places.begin;
  }
  const float* scores = params.scores + row * params.group * params.max_clusters + places.begin;
  float* ranks = params.scratch == nullptr
                     ? shared_ranks
                     : params.scratch + row * 2 * params.max_clusters + places.begin;

  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kRowThreads) {
    shared.histogram[i] = 0;
  }
  if (threadIdx.x < 2) {
    shared.num_part_candidates[threadIdx.x] = 0;
    shared.bin[threadIdx.x] = -1;
    shared.threshold[threadIdx.x] = kNoKey;
  }
  FindLogSums(params, scores, places.count, shared);
  const RankRange range =
      FindRanks<kHeads>(params, scores, places.count, budget.ranking, ranks, shared);
  const auto r = static_cast<int32_t>(min(int64_t{budget.num_retrieved}, params.max_retrieved));
  const auto e = static_cast<int32_t>(min(int64_t{budget.num_estimated}, params.max_estimated));
  const int32_t numbers[2] = {min(r, range.num_live), min(r + e, range.num_live)};
  if (numbers[1] > 0) {
    FindThresholds(ranks, places, range, numbers, shared);
    WriteZones(params, ranks, places, row, shared);
  } else if (threadIdx.x == 0 && part == 0) {
    params.num_retrieved[row] = params.num_estimated[row] = 0;
  }
  RowParts<kParts>::Sync();  // no part ends while another reads its memory
}

template <int kParts>
absl::Status Launch(cudaStream_t stream, int32_t num_rows, SelectParams params) {
  const int64_t blocks = params.max_clusters / 64;
  const int64_t part_ranks =
      std::max((blocks + kParts - 1) / kParts * 64, kParts > 1 ? kMaxAlone : params.max_clusters);
  const bool in_shared = part_ranks <= kMaxSharedRanks;
  if (in_shared) params.scratch = nullptr;
  const auto kernel = params.group <= 2   ? SelectRow<2, kParts>
                      : params.group <= 4 ? SelectRow<4, kParts>
                                          : SelectRow<kMaxGroup, kParts>;
  RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(kMaxSharedRanks * sizeof(float))));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kParts, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<uint32_t>(num_rows * kParts));
  config.blockDim = dim3(kRowThreads);
  config.dynamicSmemBytes = in_shared ? static_cast<size_t>(part_ranks) * sizeof(float) : 0;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = kParts > 1 ? 2 : StartsKernelsEarly() ? 1 : 0;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, params), "cluster_select");
}

}  // namespace

absl::Status ClusterSelect(CudaStream& stream, const ClusterSelectArgs& args) {
  RETURN_IF_ERROR(CheckClusterSelect(args));
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(group <= kMaxGroup, "cluster_select",
                           "needs at most 8 query heads for each KV head, has ", group));
  if (args.batch == 0) return absl::OkStatus();
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
      .scratch = reinterpret_cast<float*>(args.scratch.device_data()),
  };
  const int32_t num_rows = args.batch * args.num_kv_heads;
  const bool cut = StartsKernelsEarly() && args.max_clusters > kMaxAlone;  // 9.0 has clusters, too
  return cut ? Launch<kClusterParts>(stream.get(), num_rows, params)
             : Launch<1>(stream.get(), num_rows, params);
}

}  // namespace retroinfer::cuda
