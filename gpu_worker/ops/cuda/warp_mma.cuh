// Instructions of one warp that C++ has no words for: asynchronous copies to shared memory, and
// matrix products of bf16 and of int8 on tensor cores (PTX ISA, "mma.m16n8k16", "mma.m16n8k32",
// "ldmatrix", "movmatrix"; since compute capability 8.0).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace retroinfer::cuda {

// Address of shared memory as the instructions want it.
__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The 8 bytes there, at a multiple of 8.
__device__ inline uint2 LoadShared8(uint32_t shared) {
  uint2 bytes;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
               : "=r"(bytes.x), "=r"(bytes.y)
               : "r"(shared)
               : "memory");
  return bytes;
}

// Begins a copy of 16 bytes, of which the first `bytes` (0 or 16) are read and the rest are zero.
__device__ inline void CopyAsync16(uint32_t shared, const void* global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared),
               "l"(global), "r"(bytes)
               : "memory");
}
// Closes the group of the copies that this thread began since the last group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
// Lane i gets elements 2 (i % 4) and the next of row i / 4 of each.
__device__ inline void LoadMatrices(uint32_t shared, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared)
               : "memory");
}
// The same, each matrix transposed.
__device__ inline void LoadMatricesTransposed(uint32_t shared, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared)
               : "memory");
}
// Transposes an 8 x 8 matrix held as LoadMatrices leaves it.
__device__ inline uint32_t TransposeMatrix(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// c += a b for a [16, 16], b [16, 8] bf16 and c [16, 8] f32. Lane i holds columns 2 (i % 4) and the
// next of rows i / 4 (c[0], c[1]) and i / 4 + 8 (c[2], c[3]).
__device__ inline void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a b for a [16, 32], b [32, 8] int8 and c [16, 8] int32, exactly. Lane i holds columns
// 4 (i % 4) to + 3 of rows i / 4 (a[0]) and i / 4 + 8 (a[1]), and these + 16 (a[2], a[3]); the same
// of column i / 4 of b; and of c what it has of MultiplyAdd's.
__device__ inline void MultiplyAddBytes(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                        int32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// a b for a [16, 16] int8, b [16, 8] uint8, laid out as the first halves above.
__device__ inline void MultiplyBytes(uint32_t a0, uint32_t a1, uint32_t b, int32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%7, %7, %7, %7};\n"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// 2^x to 2 units in the last place; 0 for -inf.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Two values as bf16, the first in the low half.
__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace retroinfer::cuda
