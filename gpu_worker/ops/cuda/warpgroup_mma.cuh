// Instructions of a warpgroup (four warps) that only Hopper has, and that C++ has no words for:
// matrix products with operands in shared memory, copies of tensor tiles, and the barriers that
// these report to (PTX ISA, "wgmma", "cp.async.bulk.tensor", "mbarrier", "setmaxnreg").
//
// Registers of a product that is under way belong to it from its issue until its group was waited
// for; KeepOrder(registers) after the wait tells the compiler.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "gpu_worker/ops/cuda/split_barrier.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A tile of rows of 128 bytes in shared memory, at a multiple of 1024 bytes, as a copy with a
// swizzle of 128 bytes leaves it. `group_bytes` lie between groups of 8 rows, `chunk_bytes`
// between chunks of 64 elements where the product runs along the rows of the tile.
__device__ inline uint64_t TileDescriptor(uint32_t shared, uint32_t group_bytes,
                                          uint32_t chunk_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | uint64_t{group_bytes >> 4} << 32 | uint64_t{chunk_bytes >> 4} << 16 |
         (shared & 0x3ffff) >> 4;
}

// Before products whose registers other instructions wrote.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most `kPending` groups of products are under way.
template <int kPending>
__device__ inline void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
template <int kSize>
__device__ inline void KeepOrder(float (&registers)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kSize>
__device__ inline void KeepOrder(uint32_t (&registers)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// The products below name each number of c, and each again as an operand: RI_NAMES_n are the names
// of n numbers, RI_NUMBERS_n(c, i) the operands c[i] to c[i + n - 1].
#define RI_NAMES_32                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RI_NAMES_64                                                                    \
  RI_NAMES_32                                                                          \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RI_NAMES_128                                                                   \
  RI_NAMES_64                                                                          \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "   \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "               \
  "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "           \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define RI_NUMBERS_4(c, i) "+f"((c)[i]), "+f"((c)[(i) + 1]), "+f"((c)[(i) + 2]), "+f"((c)[(i) + 3])
#define RI_NUMBERS_16(c, i) \
  RI_NUMBERS_4(c, i), RI_NUMBERS_4(c, (i) + 4), RI_NUMBERS_4(c, (i) + 8), RI_NUMBERS_4(c, (i) + 12)
#define RI_NUMBERS_32(c, i) RI_NUMBERS_16(c, i), RI_NUMBERS_16(c, (i) + 16)

// c (+)= a b for a [64, 16] and b [16, 128], both with consecutive elements along 16.
__device__ inline void MultiplyShared(uint64_t a, uint64_t b, int accumulate, float (&c)[64]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" RI_NAMES_64
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : RI_NUMBERS_32(c, 0), RI_NUMBERS_32(c, 32)
      : "l"(a), "l"(b), "r"(accumulate));
}
// The same for b [16, 256].
__device__ inline void MultiplyShared(uint64_t a, uint64_t b, int accumulate, float (&c)[128]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" RI_NAMES_128
      "}, %128, %129, p, 1, 1, 0, 0;\n}\n"
      : RI_NUMBERS_32(c, 0), RI_NUMBERS_32(c, 32), RI_NUMBERS_32(c, 64), RI_NUMBERS_32(c, 96)
      : "l"(a), "l"(b), "r"(accumulate));
}
// c += a b for a [64, 16] in registers and b [16, 128] with consecutive elements along 128.
__device__ inline void MultiplyRegisters(const uint32_t* a, uint64_t b, float (&c)[64]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" RI_NAMES_64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : RI_NUMBERS_32(c, 0), RI_NUMBERS_32(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}
// c += a b for a [64, 16] in registers and b [16, 64] with consecutive elements along 64.
__device__ inline void MultiplyRegisters(const uint32_t* a, uint64_t b, float (&c)[32]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" RI_NAMES_32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : RI_NUMBERS_32(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}
// c (+)= a b for a [64, 16] in registers and b [16, 64] with consecutive elements along 16.
__device__ inline void MultiplyRegisters(const uint32_t (&a)[4], uint64_t b, int accumulate,
                                         float (&c)[32]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" RI_NAMES_32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
      : RI_NUMBERS_32(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#undef RI_NUMBERS_32
#undef RI_NUMBERS_16
#undef RI_NUMBERS_4
#undef RI_NAMES_128
#undef RI_NAMES_64
#undef RI_NAMES_32

// Makes what this thread wrote to shared memory by other means than a copy of a tile known to
// products. The threads that issue them must still be told that it was called.
__device__ inline void PublishToProducts() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Makes initialised barriers known to copies.
__device__ inline void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
// Arrives, and makes the phase wait for `bytes` of copies.
__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Begins a copy of the box at these coordinates; it reports its bytes to `barrier`.
__device__ inline void CopyTile(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int x,
                                int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// The same of four dimensions.
__device__ inline void CopyTile(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int x,
                                int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Barriers 1 to 15 of a block, for the threads that name them.
__device__ inline void SyncThreads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void ArriveThreads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace retroinfer::cuda
