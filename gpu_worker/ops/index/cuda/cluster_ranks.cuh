// What the blocks of a row of a selection share, and the ranks of the row's places (invariants in
// row_select.cuh).
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu_worker/ops/index/cluster_select.h"
#include "gpu_worker/ops/index/cuda/exp_sum.cuh"
#include "gpu_worker/ops/index/cuda/place_ranks.cuh"
#include "gpu_worker/ops/index/cuda/row_parts.cuh"

namespace retroinfer::cuda {

constexpr int kMaxGroup = 16;
constexpr int kMaxCandidates = 512;
constexpr int kBins = 2048;

// Scores of the places of a row that one part works on: of each head of the group, `stride` apart.
struct RowScores {
  const float* scores;
  int64_t stride;
  int32_t group;
  int32_t count;  // a multiple of 64
};

// Of the ranks of live places; infinities, the least the larger one, where there are none.
struct RankRange {
  float least;
  float most;
};

// A number that is larger for a larger rank.
__device__ inline uint32_t OrderOf(float rank) {
  const uint32_t bits = __float_as_uint(rank);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float RankOfOrder(uint32_t order) {
  return __uint_as_float(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// Merges those of all lanes.
__device__ inline RankRange MergeLanes(const RankRange& range) {
  return {RankOfOrder(__reduce_min_sync(kAllLanes, OrderOf(range.least))),
          RankOfOrder(__reduce_max_sync(kAllLanes, OrderOf(range.most)))};
}

template <int kParts>
struct SelectShared {
  static constexpr int kWarps = kRowThreads / 32;
  static_assert(kWarps == 32);  // one for each lane of the warp that merges

  // Read by the other parts of the row.
  ExpSum part_sums[kMaxGroup];
  RankRange part_range;
  alignas(16) uint32_t histogram[kBins];
  uint64_t part_candidates[2][kMaxCandidates];
  int32_t num_part_candidates[2];
  int32_t part_zone_sizes[2];

  // This block's own. What a kernel's next step writes is not what threads may still read.
  ExpSum sum_of_warp[kWarps];
  RankRange range_of_warp[kWarps];
  int32_t size_of_warp[kWarps];
  uint32_t zone_sizes[2][kWarps];  // of two batches in turn: a byte for each zone and round
  uint32_t digits[256];
  float log_sums[kMaxGroup];
  uint64_t candidates[2][kParts > 1 ? kMaxCandidates : 1];  // of all parts, if there are several
  int32_t num_candidates[2];
  int32_t bin[2];
  int32_t wanted[2];  // place of the threshold among the keys of its bin, from 1
  uint64_t threshold[2];
  bool is_split[2];  // whether a place of the threshold's rank is below the threshold
};

// The places of a part: a multiple of 64 of them, which may be none.
struct Places {
  int32_t begin;
  int32_t count;
};

// Sixteen scores of a thread, in four reads.
struct FourScores {
  static constexpr int kCount = 4;
  float4 x[kCount];

  // Begins to read number `first` of a row of `count`, and those `step` apart behind it.
  __device__ FourScores(const float4* row, int first, int step, int count) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float none = -INFINITY;
      x[j] = first + j * step < count ? row[first + j * step] : float4{none, none, none, none};
    }
  }
  __device__ ExpSum AddTo(const ExpSum& sum) const {
    float max = sum.max;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      max = fmaxf(max, fmaxf(fmaxf(x[j].x, x[j].y), fmaxf(x[j].z, x[j].w)));
    }
    if (max == -INFINITY) return sum;
    float added = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      added += Exp(x[j].x - max) + Exp(x[j].y - max) + Exp(x[j].z - max) + Exp(x[j].w - max);
    }
    return {max, sum.sum * Exp(sum.max - max) + added};
  }
};

// Of what ranks are relative to. A head without live clusters wants none.
__device__ inline float LogOf(const ExpSum& sum) {
  return sum.max == -INFINITY ? INFINITY : sum.max + logf(sum.sum);
}

// How the warps of a part share the sums of a group's heads: 2^SumWidth of them have a head.
__device__ inline int SumWidth(int32_t group) {
  return group > 8 ? 1 : group > 4 ? 2 : group > 2 ? 3 : 6 - group;
}

// The sum that warp `number` of a part has of its head.
__device__ inline ExpSum SumOfWarp(const RowScores& of, int number) {
  const int width = SumWidth(of.group), head = number >> width;
  ExpSum sum{-INFINITY, 0};
  if (head < of.group) {
    const auto* row = reinterpret_cast<const float4*>(of.scores + head * of.stride);
    const int step = 32 << width;
    const int first = (number & ((1 << width) - 1)) * 32 + static_cast<int>(threadIdx.x % 32);
    FourScores x(row, first, step, of.count / 4);
    for (int i = first; i < of.count / 4; i += FourScores::kCount * step) {
      const FourScores next(row, i + FourScores::kCount * step, step, of.count / 4);
      sum = x.AddTo(sum);
      x = next;
    }
  }
  return MergeLanes(sum, 32);
}

// Logarithm of the sum of exp(score) of each head of the group, over all parts of the row. `of`:
// the part's scores.
template <int kParts>
__device__ void FindLogSums(const RowScores& of, SelectShared<kParts>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const ExpSum sum = SumOfWarp(of, warp);
  if (lane == 0) shared.sum_of_warp[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const int width = SumWidth(of.group), of_head = lane >> width;
    const ExpSum all = MergeLanes(shared.sum_of_warp[lane], 1 << width);
    if (lane % (1 << width) == 0 && of_head < of.group) {
      shared.part_sums[of_head] = all;
      if constexpr (kParts == 1) shared.log_sums[of_head] = LogOf(all);
    }
  }
  RowParts<kParts>::Sync();
  if constexpr (kParts > 1) {
    constexpr int kHeadsAtOnce = 32 / kParts;
    if (warp * kHeadsAtOnce < of.group) {
      const int of_head = warp * kHeadsAtOnce + lane / kParts;
      const bool is_head = of_head < of.group;
      ExpSum all{-INFINITY, 0};
      if (is_head) all = RowParts<kParts>::Of(shared.part_sums, lane % kParts)[of_head];
      all = MergeLanes(all, kParts);
      if (is_head && lane % kParts == 0) shared.log_sums[of_head] = LogOf(all);
    }
    __syncthreads();
  }
}

// The ranks that weights of neighbouring places give, which are scores at first; -inf for one that
// is not live. Scores: float4 or float2.
template <int kHeads, typename Scores>
__device__ Scores RanksOf(Scores (&weights)[kHeads], int32_t group, GroupRanking ranking,
                          const float (&log_sums)[kHeads]) {
  constexpr int kCount = sizeof(Scores) / sizeof(float);
  Scores ranks;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    float max = -INFINITY;
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      if (g >= group) continue;
      (&weights[g].x)[j] -= log_sums[g];
      max = fmaxf(max, (&weights[g].x)[j]);
    }
    (&ranks.x)[j] = max;
  }
  if (ranking == GroupRanking::kSumOfSoftmax) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float max = (&ranks.x)[j];
      float sum = 0;
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        if (g < group) sum += Exp((&weights[g].x)[j] - max);
      }
      if (max > -INFINITY) (&ranks.x)[j] = max + logf(sum);
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float rank = (&ranks.x)[j];
    (&ranks.x)[j] = rank < INFINITY ? rank + 0.0f : -INFINITY;  // no rank is -0
  }
  return ranks;
}

// Begins to read scores of neighbouring places of all heads; `place`: the first one.
template <int kHeads, typename Scores>
__device__ void ReadHeads(const RowScores& of, int32_t place, Scores (&scores)[kHeads]) {
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    if (g < of.group) {
      scores[g] = *reinterpret_cast<const Scores*>(of.scores + g * of.stride + place);
    }
  }
}

// The ranks of four neighbouring places. As many loads of 16 bytes are under way as there are
// heads, or of 8 where registers have no room for more.
template <int kHeads>
__device__ float4 RanksOfFour(const RowScores& of, int32_t place, GroupRanking ranking,
                              const float (&log_sums)[kHeads]) {
  if constexpr (kHeads > 8) {
    float4 ranks;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 scores[kHeads];
      ReadHeads(of, place + 2 * half, scores);
      (&reinterpret_cast<float2&>(ranks.x))[half] = RanksOf(scores, of.group, ranking, log_sums);
    }
    return ranks;
  } else {
    float4 scores[kHeads];
    ReadHeads(of, place, scores);
    return RanksOf(scores, of.group, ranking, log_sums);
  }
}

// Finds the ranks of this part, which may lie where the first head's scores do; returns the range
// of those of all live clusters of the row.
template <int kHeads, int kParts, typename Ranks>
__device__ RankRange FindRanks(const RowScores& of, GroupRanking ranking, Ranks& ranks,
                               SelectShared<kParts>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  // Each read of shared memory would find out anew where that lies.
  float log_sums[kHeads];
#pragma unroll
  for (int g = 0; g < kHeads; ++g) log_sums[g] = g < of.group ? shared.log_sums[g] : 0;
  RankRange range{INFINITY, -INFINITY};
  for (int32_t batch = 0; batch < ranks.num_batches(); ++batch) {
#pragma unroll
    for (int round = 0; round < kPlaceRounds; ++round) {
      const int32_t place = ranks.PlaceOf(batch, round);
      if (place >= of.count) continue;
      const float4 four = RanksOfFour<kHeads>(of, place, ranking, log_sums);
      ranks.Set(batch, round, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float rank = (&four.x)[j];
        if (rank > -INFINITY) range.least = fminf(range.least, rank);
        range.most = fmaxf(range.most, rank);
      }
    }
  }
  range = MergeLanes(range);
  if (lane == 0) shared.range_of_warp[warp] = range;
  __syncthreads();
  range = MergeLanes(shared.range_of_warp[lane]);
  if constexpr (kParts > 1) {
    if (threadIdx.x == 0) shared.part_range = range;
    RowParts<kParts>::Sync();
    range = MergeLanes(*RowParts<kParts>::Of(&shared.part_range, lane % kParts));
  }
  return range;
}

}  // namespace retroinfer::cuda
