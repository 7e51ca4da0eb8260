// The turning of vectors that codes of tokens are made of and read with (common/kv/token_code.h): a
// warp a vector, each lane has kDim / 32 consecutive channels.
#pragma once

#include <cstdint>

#include "common/kv/token_code.h"

namespace retroinfer::cuda {

template <int kDim>
struct TurnedVector {
  static constexpr int kPerLane = kDim / 32;
  static_assert(kPerLane == 2 || kPerLane == 4 || kPerLane == 8);

  // Turns the vector in place, but for the factor 1 / sqrt(d). All lanes of the warp take part.
  static __device__ void Turn(float (&channels)[kPerLane]) {
    constexpr uint32_t kAll = 0xffffffffu;
    constexpr uint64_t kFirst = TurnedSigns(0), kSecond = TurnedSigns(1);
    constexpr uint64_t kThird = TurnedSigns(2), kFourth = TurnedSigns(3);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int first = lane * kPerLane;
    uint64_t signs = first < 64 ? kFirst : kSecond;
    if (kDim > 128 && first >= 128) signs = first < 192 ? kThird : kFourth;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if ((signs >> ((first + j) % 64) & 1) != 0) channels[j] = -channels[j];
    }
#pragma unroll
    for (int step = 1; step < kPerLane; step *= 2) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        if ((j & step) != 0) continue;
        const float low = channels[j], high = channels[j + step];
        channels[j] = low + high;
        channels[j + step] = low - high;
      }
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const float other = __shfl_xor_sync(kAll, channels[j], step);
        channels[j] = (lane & step) != 0 ? other - channels[j] : channels[j] + other;
      }
    }
  }
};

}  // namespace retroinfer::cuda
