// Who of a row's places is in which zone, and where it is written (invariants in row_select.cuh).
#pragma once

#include <cstdint>

#include "gpu_worker/ops/index/cuda/row_thresholds.cuh"

namespace retroinfer::cuda {

// What the places of the best keys have: a larger rank, or the same and a place up to `last`.
struct Threshold {
  float rank;  // NaN, which no rank reaches, for kNoKey
  int32_t last;
  bool is_split;

  __device__ Threshold(uint64_t key, bool split)
      : rank(RankOfOrder(static_cast<uint32_t>(key >> 32))),
        last(PlaceOfKey(key)),
        is_split(split) {}
};

// Which of a thread's places of a batch are in which zone.
struct ZoneBatch {
  uint32_t in_zone = 0;  // a bit for each place and zone
  uint32_t sizes = 0;    // a byte for each: zone 0 of both rounds, zone 1 of both

  // Of place i of the thread in zone k: four bits of each byte are used, as in `sizes`.
  static constexpr int BitOf(int k, int i) { return 16 * k + i / 4 * 8 + i % 4; }

  // `first_places`: of the row, the thread's first one of each round.
  __device__ ZoneBatch(const RankBatch& batch, const int32_t (&first_places)[kPlaceRounds],
                       const Threshold& first, const Threshold& second) {
    static_assert(kPlaceRounds == 2);
    uint32_t best[2] = {Best(batch, first), Best(batch, second)};
    if (first.is_split) best[0] &= ~Behind(batch, first_places, first);
    if (second.is_split) best[1] &= ~Behind(batch, first_places, second);
    in_zone = best[0] | (best[1] & ~best[0]) << BitOf(1, 0);
    // Adds up the bits of each byte, of which there are four: an instruction that counts bits takes
    // as long as four others.
    const uint32_t pairs = (in_zone & 0x05050505u) + (in_zone >> 1 & 0x05050505u);
    sizes = (pairs & 0x03030303u) + (pairs >> 2 & 0x03030303u);
  }

 private:
  static __device__ uint32_t Best(const RankBatch& batch, const Threshold& threshold) {
    uint32_t places = 0;
#pragma unroll
    for (int i = 0; i < 4 * kPlaceRounds; ++i) {
      if (batch.Rank(i / 4, i % 4) >= threshold.rank) places |= 1u << BitOf(0, i);
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
        places |= 1u << BitOf(0, i);
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

// Where this block's share of both zones begins, behind those of the blocks before it. Two warps
// find one each.
template <typename Form>
__device__ void FindZoneStart(const typename Form::Blocks& blocks, int k, int32_t first_place,
                              SelectShared<Form>& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t count = shared.num_candidates[k];
  const uint64_t threshold = shared.threshold[k];
  int32_t before = lane < blocks.index() ? shared.above[k][lane] : 0;
  if (count > kMaxCandidates) {
    before += lane < blocks.index() ? shared.ties[k][lane] : 0;
  } else {
    for (int32_t i = lane; i < count; i += 32) {
      const uint64_t key = shared.candidates[k][i];
      before += key >= threshold && PlaceOfKey(key) < first_place ? 1 : 0;
    }
  }
  before = __reduce_add_sync(kAllLanes, before);
  if (lane == 0) shared.zone_starts[k] = before;
}

// Writes both zones in the order of their places.
template <typename Form, typename Ranks, typename Job>
__device__ void WriteZones(const typename Form::Blocks& blocks, const Job& job, const Ranks& ranks,
                           int32_t first_place, int64_t row, SelectShared<Form>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (Form::kHasMany && warp < 2) FindZoneStart(blocks, warp, first_place, shared);
  int32_t starts[2] = {};
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
    if (Form::kHasMany && batch == 0) {
      starts[0] = shared.zone_starts[0];
      starts[1] = shared.zone_starts[1] - starts[0];  // the second threshold's are of both zones
    }
    const ZonePlan plan(shared.zone_sizes[batch % 2][lane]);
#pragma unroll
    for (int round = 0; round < kPlaceRounds; ++round) {
      const uint32_t before = plan.starts[round] + SizesOfRound(end - zones.sizes, round);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        auto at = starts[k] + static_cast<int32_t>(before >> (16 * k) & 0xffff);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if ((zones.in_zone >> ZoneBatch::BitOf(k, 4 * round + j) & 1) == 0) continue;
          taker.Take(k, at, places[round] + j);
          ++at;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) starts[k] += static_cast<int32_t>(plan.all >> (16 * k) & 0xffff);
  }
}

}  // namespace retroinfer::cuda
