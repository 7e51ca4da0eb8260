// Barriers in shared memory of which a thread may arrive at a phase and wait for its end later (PTX
// ISA, "mbarrier"; since compute capability 8.0).
#pragma once

#include <cstdint>

namespace retroinfer::cuda {

__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(barrier)
      : "memory");
}
// Whether the phase with this parity has ended, after some time if it has not; of a new barrier,
// that with parity 1 has.
__device__ inline bool HasEnded(uint32_t barrier, uint32_t parity) {
  uint32_t done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return done != 0;
}
// Waits for the end of the phase with this parity.
__device__ inline void WaitBarrier(uint32_t barrier, uint32_t parity) {
  while (!HasEnded(barrier, parity)) {
  }
}
// The same for a warp, whose lanes stay together.
__device__ inline void WaitBarrierOfWarp(uint32_t barrier, uint32_t parity) {
  while (!__all_sync(~0u, HasEnded(barrier, parity))) {
  }
}

}  // namespace retroinfer::cuda
