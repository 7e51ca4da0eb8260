// What the blocks of a row of a selection share, and the ranks of the row's places (invariants in
// row_select.cuh).
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "gpu_worker/ops/index/cluster_select.h"
#include "gpu_worker/ops/index/cuda/exp_sum.cuh"
#include "gpu_worker/ops/index/cuda/row_parts.cuh"

namespace retroinfer::cuda {

constexpr int kMaxGroup = 16;
constexpr int kBins = 1024;
constexpr int kMaxCandidates = 512;

// Scores of the places of a row that one part works on: of each head of the group, `stride` apart.
struct RowScores {
  const float* scores;
  int64_t stride;
  int32_t group;
  int32_t count;  // a multiple of 64
};

struct RankRange {
  float least;
  float most;
  int32_t num_live;
};

__device__ inline RankRange Merge(const RankRange& a, const RankRange& b) {
  return {fminf(a.least, b.least), fmaxf(a.most, b.most), a.num_live + b.num_live};
}

// As of an ExpSum.
__device__ inline RankRange MergeLanes(RankRange range, int count) {
  for (int step = 1; step < count; step *= 2) {
    range = Merge(range, {__shfl_xor_sync(kAllLanes, range.least, step),
                          __shfl_xor_sync(kAllLanes, range.most, step),
                          __shfl_xor_sync(kAllLanes, range.num_live, step)});
  }
  return range;
}

constexpr int kRowThreads = 1024;  // of a part

template <int kParts>
struct SelectShared {
  static constexpr int kWarps = kRowThreads / 32;
  static_assert(kWarps == 32);  // one for each lane of the warp that merges
  using Scan = cub::BlockScan<int32_t, kRowThreads>;

  // Read by the other parts of the row.
  ExpSum part_sums[kMaxGroup];
  RankRange part_range;
  alignas(16) uint32_t histogram[kBins];
  uint64_t part_candidates[2][kMaxCandidates];
  int32_t num_part_candidates[2];
  int32_t part_zone_sizes[2];

  // This block's own.
  union {
    ExpSum of_warp[kWarps];
    RankRange range_of_warp[kWarps];
    typename Scan::TempStorage scan;
    int32_t zone_sizes[2][kWarps];
    uint32_t digits[256];
  };
  RankRange range;
  float log_sums[kMaxGroup];
  uint64_t candidates[2][kMaxCandidates];
  int32_t bin[2];
  int32_t wanted[2];  // place of the threshold among the keys of its bin, from 1
  uint64_t threshold[2];
};

// The places of a part: a multiple of 64 of them, which may be none.
struct Places {
  int32_t begin;
  int32_t count;
};

// Logarithm of the sum of exp(score) of each head of the group, over all parts of the row.
template <int kParts>
__device__ void FindLogSums(const RowScores& of, SelectShared<kParts>& shared) {
  const int32_t count = of.count;
  constexpr int kWarps = SelectShared<kParts>::kWarps;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int slots = of.group > 8 ? 16 : of.group > 4 ? 8 : of.group > 2 ? 4 : of.group;
  const int warps_per_head = kWarps / slots;
  const int head = warp / warps_per_head;
  ExpSum sum{-INFINITY, 0};
  if (head < of.group) {
    const auto* row = reinterpret_cast<const float4*>(of.scores + head * of.stride);
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
  sum = MergeLanes(sum, 32);
  if (lane == 0) shared.of_warp[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const ExpSum all = MergeLanes(shared.of_warp[lane], warps_per_head);
    const int of_head = lane / warps_per_head;
    if (lane % warps_per_head == 0 && of_head < of.group) shared.part_sums[of_head] = all;
  }
  RowParts<kParts>::Sync();
  constexpr int kHeadsAtOnce = 32 / kParts;
  if (warp * kHeadsAtOnce < of.group) {
    const int of_head = warp * kHeadsAtOnce + lane / kParts;
    const bool is_head = of_head < of.group;
    ExpSum all{-INFINITY, 0};
    if (is_head) all = RowParts<kParts>::Of(shared.part_sums, lane % kParts)[of_head];
    all = MergeLanes(all, kParts);
    // A head without live clusters wants none.
    if (is_head && lane % kParts == 0) {
      shared.log_sums[of_head] = all.max == -INFINITY ? INFINITY : all.max + logf(all.sum);
    }
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

// Writes the ranks of this part, which may lie where the first head's scores do; returns the range
// of those of all live clusters of the row.
template <int kHeads, int kParts>
__device__ RankRange FindRanks(const RowScores& of, GroupRanking ranking, float* ranks,
                               SelectShared<kParts>& shared) {
  const int32_t count = of.count;
  constexpr int kThreads = kRowThreads;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  RankRange range{INFINITY, -INFINITY, 0};
  // Four clusters at a time: as many loads of 16 bytes are under way as there are heads. Two where
  // registers have no room for more.
  constexpr int kAtOnce = kHeads > 8 ? 2 : 4;
  using Scores = std::conditional_t<kAtOnce == 4, float4, float2>;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count / kAtOnce; i += kThreads) {
    Scores of_heads[kHeads];
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      if (g < of.group) {
        of_heads[g] = reinterpret_cast<const Scores*>(of.scores + g * of.stride)[i];
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      float weights[kHeads];
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        if (g < of.group) weights[g] = (&of_heads[g].x)[j] - shared.log_sums[g];
      }
      float rank = RankOf<kHeads>(weights, of.group, ranking);
      const bool is_live = rank > -INFINITY && rank < INFINITY;
      if (!is_live) rank = -INFINITY;
      ranks[kAtOnce * i + j] = rank;
      if (is_live) {
        range = {fminf(range.least, rank), fmaxf(range.most, rank), range.num_live + 1};
      }
    }
  }
  range = MergeLanes(range, 32);
  if (lane == 0) shared.range_of_warp[warp] = range;
  __syncthreads();
  if (warp == 0) {
    range = MergeLanes(shared.range_of_warp[lane], 32);
    if (lane == 0) shared.part_range = range;
  }
  RowParts<kParts>::Sync();
  if (kParts == 1) return shared.part_range;
  if (warp == 0) {
    range = MergeLanes(*RowParts<kParts>::Of(&shared.part_range, lane % kParts), kParts);
    if (lane == 0) shared.range = range;
  }
  __syncthreads();
  return shared.range;
}

}  // namespace retroinfer::cuda
