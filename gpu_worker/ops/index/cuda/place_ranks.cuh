// The ranks of a block's places of a row, as its threads share them: a thread has every
// kThreads-th four neighbouring places. Ranks of up to HeldPlaces stay in registers, where a pass
// over them costs no reads; more of them lie in memory.
#pragma once

#include <cstdint>

namespace retroinfer::cuda {

constexpr int kPlaceRounds = 2;  // fours of places that a thread works on at a time

// Of a block of so many threads.
constexpr int32_t HeldPlaces(int32_t num_threads) { return 4 * kPlaceRounds * num_threads; }

// The ranks of a thread's places in one batch; -inf behind the end.
struct RankBatch {
  float4 ranks[kPlaceRounds];

  __device__ float Rank(int round, int j) const { return (&ranks[round].x)[j]; }

  // Calls visit(round, j, rank) for the live places.
  template <typename Visit>
  __device__ void ForLive(Visit visit) const {
#pragma unroll
    for (int round = 0; round < kPlaceRounds; ++round) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (Rank(round, j) > -INFINITY) visit(round, j, Rank(round, j));
      }
    }
  }
};

template <int kThreads, bool kHeld>
class PlaceRanks {
 public:
  // `memory` is for `count` ranks; not read where they are held.
  __device__ PlaceRanks(float* memory, int32_t count) : memory_(memory), count_(count) {
#pragma unroll
    for (float4& four : held_.ranks) four = None();
  }

  __device__ int32_t num_batches() const { return kHeld ? 1 : (count_ + kStep - 1) / kStep; }
  // The first of a thread's four places, from the block's first on.
  __device__ int32_t PlaceOf(int32_t batch, int round) const {
    return batch * kStep + (round * kThreads + static_cast<int32_t>(threadIdx.x)) * 4;
  }
  // REQUIRES: the place is the block's.
  __device__ void Set(int32_t batch, int round, const float4& ranks) {
    if constexpr (kHeld) {
      held_.ranks[round] = ranks;
    } else {
      *reinterpret_cast<float4*>(memory_ + PlaceOf(batch, round)) = ranks;
    }
  }
  // What this thread set.
  __device__ RankBatch Batch(int32_t batch) const {
    if constexpr (kHeld) {
      return held_;
    } else {
      RankBatch read;
#pragma unroll
      for (int round = 0; round < kPlaceRounds; ++round) {
        const int32_t place = PlaceOf(batch, round);
        read.ranks[round] =
            place < count_ ? *reinterpret_cast<const float4*>(memory_ + place) : None();
      }
      return read;
    }
  }

  // Calls visit(place, rank) for this thread's live places.
  template <typename Visit>
  __device__ void ForLive(Visit visit) const {
    for (int32_t batch = 0; batch < num_batches(); ++batch) {
      Batch(batch).ForLive(
          [&](int round, int j, float rank) { visit(PlaceOf(batch, round) + j, rank); });
    }
  }

 private:
  static constexpr int32_t kStep = HeldPlaces(kThreads);
  static __device__ float4 None() { return {-INFINITY, -INFINITY, -INFINITY, -INFINITY}; }

  float* memory_;
  int32_t count_;
  RankBatch held_;
};

}  // namespace retroinfer::cuda
