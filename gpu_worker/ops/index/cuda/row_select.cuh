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
// * No rank is -0, so ranks are equal as numbers where their keys are.
// One block works on a row, a (sequence, KV head). Long rows are cut into eight parts where the
// device has clusters of blocks, which tell each other sums, histograms and candidates through
// shared memory; to wait for each other takes them half a microsecond. Bound by instructions: a
// place costs several hundred of a thread, and 8 blocks of one sequence have 8 multiprocessors.
// Reads 4 * group * places bytes of scores twice (L2), then works on ranks in registers. The n-th
// largest key is found by a histogram of equal steps between the smallest and the largest rank,
// which leaves a few candidates that are compared with each other; where there are too many (ties),
// by radix selection.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/index/cuda/cluster_ranks.cuh"
#include "gpu_worker/ops/index/cuda/row_parts.cuh"

namespace retroinfer::cuda {

constexpr float kRankRange = 64.0f;  // below the largest rank; smaller ones share the lowest bin
constexpr int kClusterParts = 8;     // of a long row
// Of a part. Beside what blocks share, as many as a block of any GPU from compute capability 8.0 on
// has room for: 99 KiB.
constexpr int64_t kMaxSharedRanks = 20 * 1024;
static_assert(sizeof(SelectShared<1>) + kMaxSharedRanks * sizeof(float) <= 99 * 1024);
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
    return static_cast<int32_t>(min(__float2uint_rz((rank - least) * factor), kBins - 1u));
  }
};

__device__ inline uint64_t KeyOf(float rank, int32_t place) {
  return uint64_t{OrderOf(rank)} << 32 | (0xffffffffu - static_cast<uint32_t>(place));
}

// Finds the bins of the numbers[k]-th largest ranks, or of the smallest one where there are fewer,
// from all parts' histograms. 0 leaves bin[k] as it was.
template <int kParts>
__device__ void FindBins(const int32_t (&numbers)[2], SelectShared<kParts>& shared) {
  constexpr int kEach = kBins / kRowThreads;
  struct alignas(4 * kEach) Sizes {
    int32_t of_bins[kEach];
  };
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  // From the uppermost bins down.
  const int first = kBins - kEach * (static_cast<int>(threadIdx.x) + 1);
  Sizes sizes = {};
  int32_t all = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const auto of_part =
        *reinterpret_cast<const Sizes*>(RowParts<kParts>::Of(shared.histogram, part) + first);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sizes.of_bins[i] += of_part.of_bins[i];
      all += of_part.of_bins[i];
    }
  }
  int32_t end = all;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, end, step);
    if (lane >= step) end += before;
  }
  if (lane == 31) shared.size_of_warp[warp] = end;
  __syncthreads();
  const int32_t of_warp = shared.size_of_warp[lane];
  const int32_t num_live = __reduce_add_sync(kAllLanes, of_warp);
  int32_t above = __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0) + end - all;
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int32_t number = min(numbers[k], num_live);
      if (number <= above || number > above + sizes.of_bins[i]) continue;
      shared.bin[k] = first + i;
      shared.wanted[k] = number - above;
    }
    above += sizes.of_bins[i];
  }
  __syncthreads();
}

// The wanted-th largest key of a bin by radix selection, 8 bits at a time.
template <int kParts, typename Ranks>
__device__ uint64_t RadixSelect(const Ranks& ranks, int32_t first_place, const Binning& binning,
                                int32_t bin, int32_t wanted, SelectShared<kParts>& shared) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) shared.histogram[threadIdx.x] = 0;
    __syncthreads();
    const uint64_t mask = shift == 56 ? 0 : kNoKey << (shift + 8);
    ranks.ForLive([&](int32_t place, float rank) {
      const uint64_t key = KeyOf(rank, first_place + place);
      if (binning.Of(rank) != bin || (key & mask) != prefix) return;
      const auto digit = static_cast<uint32_t>(key >> shift) & 255;
      const uint32_t peers = __match_any_sync(__activemask(), digit);
      if (static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&shared.histogram[digit], static_cast<uint32_t>(__popc(peers)));
      }
    });
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
template <int kParts, typename Ranks>
__device__ void ListCandidates(const Ranks& ranks, int32_t first_place, const Binning& binning,
                               SelectShared<kParts>& shared) {
  const int32_t bins[2] = {shared.bin[0], shared.bin[1]};
  for (int32_t batch = 0; batch < ranks.num_batches(); ++batch) {
    const RankBatch read = ranks.Batch(batch);
    uint32_t found = 0;  // a bit for each place, the second bin's above 16
    read.ForLive([&](int round, int j, float rank) {
      const int32_t bin = binning.Of(rank);
      found |= (bin == bins[0] ? 1u : 0u) << (4 * round + j);
      found |= (bin == bins[1] ? 1u : 0u) << (16 + 4 * round + j);
    });
    for (; found != 0; found &= found - 1) {  // mostly once in a warp, if at all
      const int bit = __ffs(static_cast<int>(found)) - 1;
      const int k = bit / 16, place = bit % 16;
      float rank = 0;
      read.ForLive([&](int round, int j, float other) {
        if (place == 4 * round + j) rank = other;
      });
      const int32_t at = atomicAdd(&shared.num_part_candidates[k], 1);
      if (at >= kMaxCandidates) continue;
      shared.part_candidates[k][at] =
          KeyOf(rank, first_place + ranks.PlaceOf(batch, place / 4) + place % 4);
    }
  }
  RowParts<kParts>::Sync();
}

// Copies all parts' candidates for threshold k, unless they are too many, and counts them.
template <int kParts>
__device__ void GatherCandidates(int k, SelectShared<kParts>& shared) {
  int32_t sizes[kParts], all = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    sizes[part] = RowParts<kParts>::Of(shared.num_part_candidates, part)[k];
    all += sizes[part];
  }
  if (threadIdx.x == 0) shared.num_candidates[k] = all;
  if (all > kMaxCandidates) return;
  int32_t at = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint64_t* keys = RowParts<kParts>::Of(shared.part_candidates[k], part);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < sizes[part]; i += kRowThreads) {
      shared.candidates[k][at + i] = keys[i];
    }
    at += sizes[part];
  }
}

// Finds the thresholds among a few candidates. Half of the warps work on each: a warp compares a
// candidate with all.
template <int kParts>
__device__ void CompareCandidates(SelectShared<kParts>& shared) {
  constexpr int kWarps = SelectShared<kParts>::kWarps;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int k = warp % 2;
  const uint64_t* const keys = kParts > 1 ? shared.candidates[k] : shared.part_candidates[k];
  const int32_t count = (kParts > 1 ? shared.num_candidates : shared.num_part_candidates)[k];
  if (count > kMaxCandidates) return;
  const int32_t wanted = shared.wanted[k];
  for (int32_t i = warp / 2; i < count; i += kWarps / 2) {
    const uint64_t key = keys[i];
    int32_t above = 0;
    bool is_split = false;
    for (int32_t j = lane; j < count; j += 32) {
      above += keys[j] > key ? 1 : 0;
      is_split |= keys[j] < key && keys[j] >> 32 == key >> 32;
    }
    above = __reduce_add_sync(kAllLanes, above);
    if (above != wanted - 1) continue;
    is_split = __any_sync(kAllLanes, is_split);
    if (lane == 0) {
      shared.threshold[k] = key;
      shared.is_split[k] = is_split;
    }
  }
}

// Finds the numbers[k]-th largest keys; kNoKey where the number is 0.
template <int kParts, typename Ranks>
__device__ void FindThresholds(const Ranks& ranks, int32_t first_place, const RankRange& range,
                               const int32_t (&numbers)[2], SelectShared<kParts>& shared) {
  const Binning binning(range);
  ranks.ForLive([&](int32_t, float rank) { atomicAdd(&shared.histogram[binning.Of(rank)], 1u); });
  RowParts<kParts>::Sync();
  FindBins(numbers, shared);
  ListCandidates(ranks, first_place, binning, shared);
  if constexpr (kParts > 1) {
    GatherCandidates(0, shared);
    GatherCandidates(1, shared);
    __syncthreads();
  }
  CompareCandidates(shared);
#pragma unroll 1
  for (int k = 0; k < 2; ++k) {
    const int32_t count = (kParts > 1 ? shared.num_candidates : shared.num_part_candidates)[k];
    if (count <= kMaxCandidates) continue;
    const uint64_t key =
        RadixSelect(ranks, first_place, binning, shared.bin[k], shared.wanted[k], shared);
    if (threadIdx.x == 0) {
      shared.threshold[k] = key;
      shared.is_split[k] = true;  // for all that is known
    }
  }
  __syncthreads();
}

// What the places of the best keys have: a larger rank, or the same and a place up to `last`.
struct Threshold {
  float rank;  // NaN, which no rank reaches, for kNoKey
  int32_t last;
  bool is_split;

  __device__ Threshold(uint64_t key, bool split)
      : rank(RankOfOrder(static_cast<uint32_t>(key >> 32))),
        last(static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key))),
        is_split(split) {}
};

// Which of a thread's places of a batch are in which zone.
struct ZoneBatch {
  uint32_t in_zone[2] = {};  // a bit for each place
  uint32_t sizes = 0;        // a byte for each: zone 0 of both rounds, zone 1 of both

  // `first_places`: of the row, the thread's first one of each round.
  __device__ ZoneBatch(const RankBatch& batch, const int32_t (&first_places)[kPlaceRounds],
                       const Threshold& first, const Threshold& second) {
    static_assert(kPlaceRounds == 2);
    uint32_t best[2] = {Best(batch, first), Best(batch, second)};
    if (first.is_split) best[0] &= ~Behind(batch, first_places, first);
    if (second.is_split) best[1] &= ~Behind(batch, first_places, second);
    in_zone[0] = best[0];
    in_zone[1] = best[1] & ~best[0];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      sizes |= static_cast<uint32_t>(__popc(in_zone[k] & 15)) << (16 * k);
      sizes |= static_cast<uint32_t>(__popc(in_zone[k] >> 4)) << (16 * k + 8);
    }
  }

 private:
  static __device__ uint32_t Best(const RankBatch& batch, const Threshold& threshold) {
    uint32_t places = 0;
#pragma unroll
    for (int i = 0; i < 4 * kPlaceRounds; ++i) {
      if (batch.Rank(i / 4, i % 4) >= threshold.rank) places |= 1u << i;
    }
    return places;
  }
  // Those of the threshold's rank that are below it.
  static __device__ uint32_t Behind(const RankBatch& batch,
                                    const int32_t (&first_places)[kPlaceRounds],
                                    const Threshold& threshold) {
    uint32_t places = 0;
#pragma unroll
    for (int i = 0; i < 4 * kPlaceRounds; ++i) {
      if (batch.Rank(i / 4, i % 4) == threshold.rank &&
          first_places[i / 4] + i % 4 > threshold.last) {
        places |= 1u << i;
      }
    }
    return places;
  }
};

// The sums over this lane and those before it, for which the bytes have room: up to 128 places.
__device__ inline uint32_t SumOfLanes(uint32_t sizes) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sizes, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) sizes += other;
  }
  return sizes;
}

// Sizes of a round of both zones, the second's above 16 bits.
__device__ inline uint32_t SizesOfRound(uint32_t sizes, int round) {
  return sizes >> (8 * round) & 0x00ff00ffu;
}

// Where the zones of a warp's rounds begin in those of a batch, and how long those are; the second
// zone above 16 bits. The places of a batch follow each other by round, then by warp.
struct ZonePlan {
  uint32_t starts[kPlaceRounds];
  uint32_t all;

  // `sizes`: of the warp whose number is this lane's.
  explicit __device__ ZonePlan(uint32_t sizes) {
    const bool is_before = threadIdx.x % 32 < threadIdx.x / 32;
    const uint32_t first = SizesOfRound(sizes, 0), second = SizesOfRound(sizes, 1);
    starts[0] = __reduce_add_sync(kAllLanes, is_before ? first : 0);
    starts[1] = __reduce_add_sync(kAllLanes, first + (is_before ? second : 0));
    all = __reduce_add_sync(kAllLanes, first + second);
  }
};

// Where this part's share of both zones of a row that is cut begins, behind those of the parts
// before it.
template <int kParts, typename Ranks>
__device__ void FindZoneStarts(const Ranks& ranks, int32_t first_place,
                               SelectShared<kParts>& shared, int32_t (&starts)[2],
                               int32_t (&sizes)[2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t first = shared.threshold[0], second = shared.threshold[1];
  int32_t of_part[2] = {};
  ranks.ForLive([&](int32_t place, float rank) {
    const uint64_t key = KeyOf(rank, first_place + place);
    of_part[0] += key >= first ? 1 : 0;
    of_part[1] += key >= second && key < first ? 1 : 0;
  });
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    of_part[k] = __reduce_add_sync(kAllLanes, of_part[k]);
    if (lane == 0 && of_part[k] != 0) atomicAdd(&shared.part_zone_sizes[k], of_part[k]);
  }
  RowParts<kParts>::Sync();
  const int index = RowParts<kParts>::Index();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int32_t size = lane < kParts ? RowParts<kParts>::Of(shared.part_zone_sizes, lane)[k] : 0;
    starts[k] = __reduce_add_sync(kAllLanes, lane < index ? size : 0);
    sizes[k] = __reduce_add_sync(kAllLanes, size);
  }
}

// Writes both zones in the order of their places, this part's share behind those of the parts
// before it.
template <int kParts, typename Ranks, typename Job>
__device__ void WriteZones(const Job& job, const Ranks& ranks, int32_t first_place, int64_t row,
                           SelectShared<kParts>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  int32_t starts[2] = {}, sizes[2] = {};
  if constexpr (kParts > 1) FindZoneStarts(ranks, first_place, shared, starts, sizes);
  const Threshold first(shared.threshold[0], shared.is_split[0]);
  const Threshold second(shared.threshold[1], shared.is_split[1]);
  const auto taker = job.Of(row);
  for (int32_t batch = 0; batch < ranks.num_batches(); ++batch) {
    const int32_t places[kPlaceRounds] = {first_place + ranks.PlaceOf(batch, 0),
                                          first_place + ranks.PlaceOf(batch, 1)};
    const ZoneBatch zones(ranks.Batch(batch), places, first, second);
    const uint32_t end = SumOfLanes(zones.sizes);
    if (lane == 31) shared.zone_sizes[batch % 2][warp] = end;
    __syncthreads();
    const ZonePlan plan(shared.zone_sizes[batch % 2][lane]);
#pragma unroll
    for (int round = 0; round < kPlaceRounds; ++round) {
      const uint32_t before = plan.starts[round] + SizesOfRound(end - zones.sizes, round);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        auto at = starts[k] + static_cast<int32_t>(before >> (16 * k) & 0xffff);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if ((zones.in_zone[k] >> (4 * round + j) & 1) == 0) continue;
          taker.Take(k, at, places[round] + j);
          ++at;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) starts[k] += static_cast<int32_t>(plan.all >> (16 * k) & 0xffff);
  }
  if (threadIdx.x != 0 || RowParts<kParts>::Index() != 0) return;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    job.SetSize(row, k, kParts > 1 ? sizes[k] : starts[k]);
  }
}

// grid: [rows * kParts], clusters of kParts. kHeads: at least the group. A Job has of each row
//   RowPlan Plan(row)
//   RowScores Scores(row, places)       group and scores
//   float* Ranks(row, places, shared)   memory for the ranks of a part; `shared` is shared memory
//   Of(row).Take(k, at, place)          place `place` is number `at` of zone k
//   void SetSize(row, k, size)
//   kPlansEarly                         whether Plan reads nothing that the kernel before writes
// kHeld: no part has more than kHeldPlaces places.
template <int kHeads, int kParts, bool kHeld, typename Job>
__global__ void __launch_bounds__(kRowThreads, 1) SelectRow(const Job job) {
  __shared__ SelectShared<kParts> shared;
  extern __shared__ float shared_ranks[];
  const int64_t row = blockIdx.x / kParts;
  const int part = RowParts<kParts>::Index();
  AllowNextKernel();
  RowPlan plan;
  if constexpr (Job::kPlansEarly) plan = job.Plan(row);
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kRowThreads) {
    shared.histogram[i] = 0;
  }
  if (threadIdx.x < 2) {
    shared.num_part_candidates[threadIdx.x] = 0;
    shared.part_zone_sizes[threadIdx.x] = 0;
    shared.bin[threadIdx.x] = -1;
    shared.threshold[threadIdx.x] = kNoKey;
    shared.is_split[threadIdx.x] = false;
  }
  AwaitLastKernel();
  if constexpr (!Job::kPlansEarly) plan = job.Plan(row);
  const int32_t blocks = plan.count / 64;
  Places places{0, part == 0 ? plan.count : 0};
  if (kParts > 1 && plan.is_cut) {
    places.begin = blocks * part / kParts * 64;
    places.count = blocks * (part + 1) / kParts * 64 - places.begin;
  }
  const RowScores scores = job.Scores(row, places);
  PlaceRanks<kHeld> ranks(kHeld ? nullptr : job.Ranks(row, places, shared_ranks), places.count);
  FindLogSums(scores, shared);
  const RankRange range = FindRanks<kHeads>(scores, plan.ranking, ranks, shared);
  FindThresholds(ranks, places.begin, range, plan.numbers, shared);
  WriteZones(job, ranks, places.begin, row, shared);
  // No part ends while another reads its memory.
  if constexpr (kParts > 1) RowParts<kParts>::Sync();
}

// `max_places`: of a row that is not cut.
// `shared_ranks`: of a part, at most kMaxSharedRanks; for where ranks are not held.
template <int kParts, typename Job>
cudaError_t LaunchSelection(cudaStream_t stream, int32_t num_rows, int32_t group,
                            int64_t max_places, int64_t shared_ranks, const Job& job) {
  constexpr bool kMayHold = kParts == 1;
  const bool held = kMayHold && max_places <= kHeldPlaces;
  const auto kernel = held         ? (group <= 2   ? SelectRow<2, kParts, kMayHold, Job>
                                      : group <= 4 ? SelectRow<4, kParts, kMayHold, Job>
                                      : group <= 8 ? SelectRow<8, kParts, kMayHold, Job>
                                                   : SelectRow<kMaxGroup, kParts, kMayHold, Job>)
                      : group <= 2 ? SelectRow<2, kParts, false, Job>
                      : group <= 4 ? SelectRow<4, kParts, false, Job>
                      : group <= 8 ? SelectRow<8, kParts, false, Job>
                                   : SelectRow<kMaxGroup, kParts, false, Job>;
  if (held) shared_ranks = 0;
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
