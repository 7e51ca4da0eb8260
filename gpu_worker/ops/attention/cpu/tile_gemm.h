// The matrix product inside attention tiles: small, from and to the cache of one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/dtype.h"
#include "gpu_worker/ops/cpu/addressable.h"

namespace retroinfer::cpu {

inline constexpr int64_t kTileCols = 32;
inline constexpr int64_t kTileRowStep = 32;

// c[m, 32] = a[m, k] * b[k, 32], or c += with `accumulate`. Sums are f32, and c is dense f32.
//   a: rows of `a_stride` elements.
//   b: f32: [k][32]. bf16: pairs of rows interleaved, [k / 2][32][2].
// REQUIRES: m and k are multiples of 32; b and c are aligned to 64.
struct TileGemmArgs {
  const std::byte* a;
  int64_t a_stride;
  const std::byte* b;
  float* c;
  int64_t m;
  int64_t k;
  bool accumulate;
};

// One way to compute the product.
struct TileGemm {
  DType dtype;  // of a and b
  void (*multiply)(const TileGemmArgs& args);
  // Called by a thread before its first and after its last product in a row.
  void (*begin)();
  void (*end)();
};

// The product, as callers get it: what it will touch is looked at first (addressable.h).
inline void Multiply(const TileGemm& gemm, const TileGemmArgs& args) {
  const auto element = static_cast<int64_t>(DTypeBytes(gemm.dtype));
  for (int64_t row = 0; row < args.m; ++row) {
    CheckAddressable(args.a + row * args.a_stride * element, static_cast<size_t>(args.k * element));
  }
  CheckAddressable(args.b, static_cast<size_t>(args.k * kTileCols * element));
  CheckAddressable(args.c, static_cast<size_t>(args.m * kTileCols) * sizeof(float));
  gemm.multiply(args);
}

// The fastest for operands of `dtype` (f32, or bf16 if HasAvx512Bf16()) on this processor.
const TileGemm& ChooseTileGemm(DType dtype);

// The three ways, for those that compare them. REQUIRES: the processor has the instructions.
const TileGemm& F32TileGemm();
const TileGemm& Avx512Bf16TileGemm();
const TileGemm& AmxBf16TileGemm();

}  // namespace retroinfer::cpu
