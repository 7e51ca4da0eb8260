// Reads that are begun before anyone needs their result.
#pragma once

#include <cstdint>

namespace retroinfer::cuda {

// Begins to bring memory to the L2 cache, on devices that can (compute capability 9.0). A hint:
// results do not depend on it.
// REQUIRES: `memory` and `bytes` are multiples of 16; the memory is there.
__device__ inline void PrefetchToL2([[maybe_unused]] const void* memory,
                                    [[maybe_unused]] uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(__cvta_generic_to_global(memory)),
      "r"(bytes)
      : "memory");
#endif
}

}  // namespace retroinfer::cuda
