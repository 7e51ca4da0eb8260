// What the blocks of a row of a selection share, and the ranks of the row's places (invariants in
// row_select.cuh).
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu_worker/ops/index/cluster_select.h"
#include "gpu_worker/ops/index/cuda/exp_sum.cuh"
#include "gpu_worker/ops/index/cuda/place_ranks.cuh"
#include "gpu_worker/ops/index/cuda/row_blocks.cuh"

namespace retroinfer::cuda {

constexpr int kMaxGroup = 16;
constexpr int kMaxCandidates = 512;
constexpr int kLogCutParts = 3;  // parts that the sums of a cut row are of, to base 2
constexpr int kCutParts = 1 << kLogCutParts;
constexpr int kSumsOfPart = 32;  // a warp's each

// How the blocks of a row are made. kMany: whether there are several.
template <int kThreadsOfBlock, bool kMany>
struct RowForm {
  using Blocks = RowBlocks<kMany>;
  static constexpr bool kHasMany = kMany;
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kWarps = kThreads / 32;
  static_assert(kWarps <= 32);  // one for each lane of a warp that merges
  // Ranks are counted in bins, so many to a coarse one. Many bins leave few candidates of long
  // rows; to add them up takes time.
  static constexpr int kCoarseBins = kMany && kThreads >= 512 ? 128 : 64;
  static constexpr int kFineBins = kMany && kThreads >= 512 ? 64 : 32;
  static constexpr int kBins = kCoarseBins * kFineBins;
  static constexpr int kMaxSums = kSumsOfPart * (kMany ? kCutParts : 1);
};

// Scores of some places of a row: of each head of the group, `stride` apart.
struct RowScores {
  const float* scores;
  int64_t stride;
  int32_t group;
  int32_t count;  // a multiple of 64
};

// A number that is larger for a larger rank.
__device__ inline uint32_t OrderOf(float rank) {
  const uint32_t bits = __float_as_uint(rank);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float RankOfOrder(uint32_t order) {
  return __uint_as_float(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// What weights of a head's places are relative to.
struct HeadSum {
  float log;   // of the sum of exp(score)
  float best;  // the largest score, less that
};

template <typename Form>
struct SelectShared {
  static constexpr int kMaxBlocks = Form::Blocks::kMaxBlocks;
  enum {
    kSums,
    kCoarse,
    kFine,
    kCandidates = kFine + 2,
    kTies = kCandidates + 2,
    kArrivals = kTies + 2
  };

  // Written by all blocks of the row.
  Arrival arrivals[kArrivals];
  alignas(16) ExpSum warp_sums[Form::kMaxSums];
  alignas(16) uint32_t coarse_sizes[kMaxBlocks][Form::kCoarseBins];
  alignas(16) uint32_t fine_sizes[2][Form::kHasMany ? kMaxBlocks : 1][Form::kFineBins];
  alignas(16) uint64_t candidates[2][kMaxCandidates];
  int32_t above[2][kMaxBlocks];  // places in bins above the threshold's
  int32_t ties[2][kMaxBlocks];   // places in its bin, and not below it; where they are too many

  // This block's own. What a kernel's next step writes is not what threads may still read.
  alignas(16) uint32_t histogram[Form::kBins];
  ExpSum part_sums[kCutParts][kMaxGroup];
  HeadSum head_sums[kMaxGroup];
  uint32_t zone_sizes[2][32];  // of warps, in two batches in turn: a byte for each zone and round
  uint32_t digits[256];
  int32_t num_live;
  int32_t bin[2];
  int32_t wanted[2];          // place of the threshold among the keys of its bin, from 1
  int32_t num_candidates[2];  // of all blocks
  int32_t next_candidate[2];  // of this one
  int32_t num_ties[2];
  int32_t zone_starts[2];
  uint64_t threshold[2];
  bool is_split[2];  // whether a place of the threshold's rank is below the threshold
};

// Some places of a row: a multiple of 64, which may be none.
struct Places {
  int32_t begin;
  int32_t count;

  // Part `part` of 2^log_parts of a row of `all`.
  static __device__ Places Of(int32_t all, int part, int log_parts) {
    const int32_t blocks = all / 64, begin = blocks * part >> log_parts;
    return {begin * 64, ((blocks * (part + 1) >> log_parts) - begin) * 64};
  }
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

// How the warps of a part share the sums of a group's heads: 2^SumWidth of 32 have a head.
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

// Sends this block's share of the sums of a row's parts to all. Which sums there are, and of what,
// does not depend on the number of blocks, nor do their last bits.
template <typename Form, typename Job>
__device__ void SendSums(const typename Form::Blocks& blocks, const Job& job, int64_t row,
                         int32_t num_places, int log_parts, SelectShared<Form>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int of_block = (kSumsOfPart << log_parts) >> blocks.log_count();
  for (int i = warp; i < of_block; i += Form::kWarps) {
    const auto number = static_cast<unsigned>(blocks.index() * of_block + i);
    const Places places = Places::Of(num_places, static_cast<int>(number / kSumsOfPart), log_parts);
    const ExpSum sum = SumOfWarp(job.Scores(row, places), static_cast<int>(number % kSumsOfPart));
    // Lanes have sums whose last bits differ.
    const ExpSum first{__shfl_sync(kAllLanes, sum.max, 0), __shfl_sync(kAllLanes, sum.sum, 0)};
    if (lane >= blocks.count()) continue;
    blocks.Send(&shared.warp_sums[number], first, lane, shared.arrivals[shared.kSums]);
  }
}

// Finds the sums of the heads of the group over all parts of the row.
template <typename Form>
__device__ void MergeSums(const typename Form::Blocks& blocks, int32_t group, int log_parts,
                          SelectShared<Form>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int width = SumWidth(group);
  const auto set = [&](int head, const ExpSum& all) {
    const float log = LogOf(all);
    shared.head_sums[head] = {log, all.max - log};
  };
  const int num_parts = 1 << log_parts;
  blocks.Await(shared.arrivals[shared.kSums]);
  for (int part = warp; part < num_parts; part += Form::kWarps) {
    const ExpSum all = MergeLanes(shared.warp_sums[part * kSumsOfPart + lane], 1 << width);
    const int head = lane >> width;
    if ((lane & ((1 << width) - 1)) != 0 || head >= group) continue;
    if (num_parts == 1) set(head, all);
    if (num_parts > 1) shared.part_sums[part][head] = all;
  }
  __syncthreads();
  if (num_parts == 1) return;
  constexpr int kHeadsAtOnce = 32 / kCutParts;
  if (warp * kHeadsAtOnce < group) {
    const int head = warp * kHeadsAtOnce + lane / kCutParts;
    ExpSum all{-INFINITY, 0};
    if (head < group) all = shared.part_sums[lane % kCutParts][head];
    all = MergeLanes(all, kCutParts);
    if (head < group && lane % kCutParts == 0) set(head, all);
  }
  __syncthreads();
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

// Bins of ranks, the largest in the uppermost: steps of equal width, which is finer where the best
// weight lies little above the mean one. All smaller ranks share the lowest bin.
template <typename Form>
class Binning {
 public:
  __device__ Binning(int32_t num_places, int32_t group, GroupRanking ranking,
                     const SelectShared<Form>& shared) {
    float most = -INFINITY;
    for (int g = 0; g < group; ++g) most = fmaxf(most, shared.head_sums[g].best);
    const float width =
        fminf(kWidest, kWidthOverMean * (most + __logf(static_cast<float>(num_places))));
    if (ranking == GroupRanking::kSumOfSoftmax) most += kMostOfSum;
    least_ = most - width;
    // Of what differences are really like, so that none passes the uppermost bin by half of one.
    const float range = most - least_;
    factor_ = range > kNarrowest ? __fdividef(static_cast<float>(Form::kBins - 1), range) : 0;
  }

  // The bin as a number that is kFirst for the lowest one. A conversion would take eight times as
  // long as that sum. REQUIRES: no NaN.
  __device__ float Position(float rank) const {
    return fmaxf(fmaf(rank - least_, factor_, kFirst), kFirst);
  }
  // Never smaller for a larger rank.
  __device__ uint32_t Of(float rank) const {
    return __float_as_uint(Position(rank)) & (Form::kBins - 1);
  }
  static __device__ float PositionOf(int32_t bin) { return kFirst + static_cast<float>(bin); }

 private:
  static constexpr float kFirst = 8388608.0f;  // 2^23, from which on numbers are whole
  static constexpr float kWidest = 64.0f;
  static constexpr float kNarrowest = 1e-3f;
  static constexpr float kWidthOverMean = 6.0f;
  static constexpr float kMostOfSum = 3.0f;  // above log(kMaxGroup)

  float least_;
  float factor_;
};

// The scores of a thread's places, where registers have room for them: they are on their way while
// the block waits for sums.
template <int kHeads, bool kEarly>
struct EarlyScores {
  float4 scores[kPlaceRounds][kHeads];

  template <typename Ranks>
  __device__ EarlyScores(const RowScores& of, const Ranks& ranks) {
#pragma unroll
    for (int round = 0; round < kPlaceRounds; ++round) {
      const int32_t place = ranks.PlaceOf(0, round);
      if (place < of.count) ReadHeads(of, place, scores[round]);
    }
  }
};
template <int kHeads>
struct EarlyScores<kHeads, false> {
  template <typename Ranks>
  __device__ EarlyScores(const RowScores& /*of*/, const Ranks& /*ranks*/) {}
};

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

// Finds the ranks of this block's places, which may lie where the first head's scores do, and
// counts them in the histogram.
template <int kHeads, bool kEarly, typename Form, typename Ranks>
__device__ void FindRanks(const RowScores& of, EarlyScores<kHeads, kEarly>& early,
                          GroupRanking ranking, const Binning<Form>& binning, Ranks& ranks,
                          SelectShared<Form>& shared) {
  // Each read of shared memory would find out anew where that lies.
  float log_sums[kHeads];
#pragma unroll
  for (int g = 0; g < kHeads; ++g) log_sums[g] = g < of.group ? shared.head_sums[g].log : 0;
  for (int32_t batch = 0; batch < ranks.num_batches(); ++batch) {
#pragma unroll
    for (int round = 0; round < kPlaceRounds; ++round) {
      const int32_t place = ranks.PlaceOf(batch, round);
      if (place >= of.count) continue;
      float4 four;
      if constexpr (kEarly) {
        four = RanksOf(early.scores[round], of.group, ranking, log_sums);
      } else {
        four = RanksOfFour<kHeads>(of, place, ranking, log_sums);
      }
      ranks.Set(batch, round, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float rank = (&four.x)[j];
        if (rank > -INFINITY) atomicAdd(&shared.histogram[binning.Of(rank)], 1u);
      }
    }
  }
}

}  // namespace retroinfer::cuda
