// Eight bits to bf16, which holds them exactly, without a conversion for each number.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace retroinfer::cuda {

// The int8 in byte `kLow` of `word` and, as the high half, that in byte `kHigh`.
//
// bf16 numbers from 128 to 255 are 0x4300 plus what they have above 128, and 0x4380 is 256. So a
// byte's lowest seven bits give 128 more than they count; 128 is subtracted again, or, if the sign
// bit is set, which counts -128, 256.
template <int kLow, int kHigh>
__device__ inline __nv_bfloat162 WidenBytes(uint32_t word) {
  constexpr uint32_t kSelector = kLow | 4 << 4 | kHigh << 8 | 4 << 12;
  const uint32_t spread = __byte_perm(word, 0x43434343, kSelector);
  const uint32_t above = spread & 0xff7fff7f, base = spread & 0xff80ff80;
  return __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&above),
                 *reinterpret_cast<const __nv_bfloat162*>(&base));
}

}  // namespace retroinfer::cuda
