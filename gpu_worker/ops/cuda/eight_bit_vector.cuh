// Keys and values in eight bits (eight_bit_vector.h) as the lanes of a warp make and read them:
// eight numbers of a vector at a time, neighbours in neighbouring lanes.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/widen.cuh"
#include "gpu_worker/ops/eight_bit_vector.h"

namespace retroinfer::cuda {

// The lowest bits of a vector's first elements hold its code and do not count: what is left of the
// words of elements 0 to 3 and 4 to 7.
inline constexpr uint32_t kCountsOfWord0 = 0xfefefefe;
inline constexpr uint32_t kCountsOfWord1 = 0xfffffefe;

// Bits of the largest |number|, as a float; as integers, so that NaN is the largest of all.
__device__ inline uint32_t LargestBits(const Bf16x8& numbers) {
  uint32_t largest = 0;
#pragma unroll
  for (const __nv_bfloat162& pair : numbers.pair) {
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(&pair);
    largest = max(largest, max(bits << 16 & 0x7fffffffu, bits & 0x7fff0000u));
  }
  return largest;
}

// The code of a vector that `lanes` neighbours hold, a power of two; `largest` is of a lane's own
// numbers. Called by all lanes of a warp.
__device__ inline int32_t CodeOfLanes(uint32_t largest, int32_t lanes) {
  for (int32_t step = lanes / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  }
  return ExponentCode(largest);
}

// Elements `place` to `place` + 7 of a vector of this code.
__device__ inline uint2 EncodeEight(const Bf16x8& numbers, int32_t place, int32_t code) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const __nv_bfloat162 pair = numbers.pair[i / 2];
    const float number = i % 2 == 0 ? __low2float(pair) : __high2float(pair);
    const auto element = static_cast<uint8_t>(ToElement(number, place + i, code));
    words[i / 4] |= static_cast<uint32_t>(element) << (8 * (i % 4));
  }
  return make_uint2(words[0], words[1]);
}

// The reverse, exact.
__device__ inline Bf16x8 DecodeEight(uint2 elements, int32_t place, int32_t code) {
  const __nv_bfloat162 scale = __float2bfloat162_rn(ScaleOfCode(code));
  const uint32_t low = place == 0 ? elements.x & kCountsOfWord0 : elements.x;
  const uint32_t high = place == 0 ? elements.y & kCountsOfWord1 : elements.y;
  return {{__hmul2(WidenBytes<0, 1>(low), scale), __hmul2(WidenBytes<2, 3>(low), scale),
           __hmul2(WidenBytes<0, 1>(high), scale), __hmul2(WidenBytes<2, 3>(high), scale)}};
}

// The code in the first eight elements of a vector.
__device__ inline int32_t CodeOfFirst(uint2 elements) {
  return CodeOf(uint64_t{elements.y} << 32 | elements.x);
}

}  // namespace retroinfer::cuda
