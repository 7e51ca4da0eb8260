// Sums of exponentials of scores, each relative to its own maximum, and how they merge.
#pragma once

#include <cstdint>

namespace retroinfer::cuda {

constexpr uint32_t kAllLanes = 0xffffffffu;

// Maximum and sum of exp(x - max) of some scores.
struct ExpSum {
  float max;
  float sum;
};

// To a few units in the last place: ranks need no more. A result below 2^-126 is 0: next to that of
// the maximum, which is 1, and in a sum relative to the maximum, the smaller ones change no bit.
__device__ inline float Exp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(__fmul_rn(x, 1.4426950408889634f)));
  return result;
}

__device__ inline ExpSum Merge(const ExpSum& a, const ExpSum& b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {-INFINITY, 0};
  return {max, a.sum * Exp(a.max - max) + b.sum * Exp(b.max - max)};
}

// Merges those of `count` neighbouring lanes, a power of two; each of them gets the result.
__device__ inline ExpSum MergeLanes(ExpSum sum, int count) {
  for (int step = 1; step < count; step *= 2) {
    sum = Merge(sum, {__shfl_xor_sync(kAllLanes, sum.max, step),
                      __shfl_xor_sync(kAllLanes, sum.sum, step)});
  }
  return sum;
}

}  // namespace retroinfer::cuda
