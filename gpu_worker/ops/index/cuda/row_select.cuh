// Selection of the best places of rows, by the scores of a group of heads: of clusters
// (cluster_select.cu), and of pages (page_select.cu).
//
// Invariants:
// * A place's rank is the logarithm of its weight: max_g or log sum_g exp of (x_g - log-sum-exp of
//   head g). It is finite for a live place, however small its weight; -inf for an empty one.
// * A place's key is (rank, place) in one 64-bit number, the lower place the larger key. Keys are
//   unique, so "the n-th largest key" chooses exactly n places, and ties go to the first ones.
// * How a row is cut into parts depends on the row alone, so its result does not depend on the
//   batch.
// One block works on a row, a (sequence, KV head). Long rows are cut into eight parts where the
// device has clusters of blocks, which tell each other sums, histograms and candidates through
// shared memory. Bound by latency: reads 4 * group * places bytes of scores twice (L2), then works
// on ranks in shared memory. The n-th largest key is found by a histogram of 1024 equal steps
// between the smallest and the largest rank, which leaves a few candidates that are compared with
// each other; where there are too many (ties), by radix selection.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/index/cuda/cluster_ranks.cuh"
#include "gpu_worker/ops/index/cuda/row_parts.cuh"

namespace retroinfer::cuda {

constexpr int kClusterParts = 8;     // of a long row
constexpr float kRankRange = 64.0f;  // below the largest rank; smaller ones share the lowest bin
constexpr int64_t kMaxSharedRanks = 24 * 1024;  // of a part
constexpr uint64_t kNoKey = UINT64_MAX;

// What is to be done with a row.
struct RowPlan {
  int32_t count;       // places, a multiple of 64
  bool is_cut;         // into as many parts as the launch has
  int32_t numbers[2];  // the best, and the best with those behind them; 0: none
  GroupRanking ranking;
};

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

__device__ inline uint64_t KeyOf(float rank, int32_t place) {
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

// Writes both zones in the order of their places, this part's share behind those of the parts
// before it.
template <int kParts, typename Job>
__device__ void WriteZones(const Job& job, const float* ranks, const Places& places, int64_t row,
                           SelectShared<kParts>& shared) {
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
    if (threadIdx.x == 0 && index == 0) job.SetSize(row, k, all);
  }
  const uint32_t before = (1u << lane) - 1;
  ForWarpShare<kParts>(ranks, places, [&](int32_t place, uint64_t key) {
    const bool is_first = key >= first;
    const bool is_second = key >= second && !is_first;
    const uint32_t firsts = __ballot_sync(kAllLanes, is_first);
    const uint32_t seconds = __ballot_sync(kAllLanes, is_second);
    if (is_first) job.Take(row, 0, at[0] + __popc(firsts & before), place);
    if (is_second) job.Take(row, 1, at[1] + __popc(seconds & before), place);
    at[0] += __popc(firsts);
    at[1] += __popc(seconds);
  });
}

// grid: [rows * kParts], clusters of kParts. kHeads: at least the group. A Job has of each row
//   RowPlan Plan(row)
//   RowScores Scores(row, places)       group and scores
//   float* Ranks(row, places, shared)   memory for the ranks of a part; `shared` is shared memory
//   void Take(row, k, at, place)        place `place` is number `at` of zone k
//   void SetSize(row, k, size)
template <int kHeads, int kParts, typename Job>
__global__ void __launch_bounds__(kRowThreads, 1) SelectRow(const Job job) {
  __shared__ SelectShared<kParts> shared;
  extern __shared__ float shared_ranks[];
  const int64_t row = blockIdx.x / kParts;
  const int part = RowParts<kParts>::Index();
  AllowNextKernel();
  AwaitLastKernel();
  const RowPlan plan = job.Plan(row);
  const int32_t blocks = plan.count / 64;
  Places places{0, part == 0 ? plan.count : 0};
  if (kParts > 1 && plan.is_cut) {
    places.begin = blocks * part / kParts * 64;
    places.count = blocks * (part + 1) / kParts * 64 - places.begin;
  }
  const RowScores scores = job.Scores(row, places);
  float* ranks = job.Ranks(row, places, shared_ranks);

  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kRowThreads) {
    shared.histogram[i] = 0;
  }
  if (threadIdx.x < 2) {
    shared.num_part_candidates[threadIdx.x] = 0;
    shared.bin[threadIdx.x] = -1;
    shared.threshold[threadIdx.x] = kNoKey;
  }
  FindLogSums(scores, shared);
  const RankRange range = FindRanks<kHeads>(scores, plan.ranking, ranks, shared);
  const int32_t numbers[2] = {min(plan.numbers[0], range.num_live),
                              min(plan.numbers[1], range.num_live)};
  if (numbers[0] > 0 || numbers[1] > 0) {
    FindThresholds(ranks, places, range, numbers, shared);
    WriteZones(job, ranks, places, row, shared);
  } else if (threadIdx.x == 0 && part == 0) {
    job.SetSize(row, 0, 0);
    job.SetSize(row, 1, 0);
  }
  RowParts<kParts>::Sync();  // no part ends while another reads its memory
}

// `shared_ranks`: of a part, at most kMaxSharedRanks.
template <int kParts, typename Job>
cudaError_t LaunchSelection(cudaStream_t stream, int32_t num_rows, int32_t group,
                            int64_t shared_ranks, const Job& job) {
  const auto kernel = group <= 2   ? SelectRow<2, kParts, Job>
                      : group <= 4 ? SelectRow<4, kParts, Job>
                      : group <= 8 ? SelectRow<8, kParts, Job>
                                   : SelectRow<kMaxGroup, kParts, Job>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kMaxSharedRanks * sizeof(float)));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kParts, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<uint32_t>(num_rows * kParts));
  config.blockDim = dim3(kRowThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_ranks) * sizeof(float);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = kParts > 1 ? 2 : StartsKernelsEarly() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, job);
}

}  // namespace retroinfer::cuda
