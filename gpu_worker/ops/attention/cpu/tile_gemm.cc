#include "gpu_worker/ops/attention/cpu/tile_gemm.h"

#include "gpu_worker/ops/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/attention/cpu/tile_gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// As many accumulators as the registers hold: 16 of 32 for AVX-512, 8 of 16 for others.
#if HWY_MAX_BYTES == 64
constexpr int kVectors = 2;
constexpr int kRows = 8;
#else
constexpr int kVectors = 4;
constexpr int kRows = 2;
#endif

void MultiplyF32(const TileGemmArgs& args) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* a = reinterpret_cast<const float*>(args.a);
  const auto* b = reinterpret_cast<const float*>(args.b);
  for (int64_t col = 0; col < kTileCols; col += kVectors * lanes) {
    for (int64_t row = 0; row < args.m; row += kRows) {
      FloatVec sums[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = args.accumulate
                           ? hn::Load(d, args.c + (row + r) * kTileCols + col + v * lanes)
                           : hn::Zero(d);
        }
      }
      for (int64_t k = 0; k < args.k; ++k) {
        FloatVec b_row[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          b_row[v] = hn::Load(d, b + k * kTileCols + col + v * lanes);
        }
        for (int r = 0; r < kRows; ++r) {
          const auto value = hn::Set(d, a[(row + r) * args.a_stride + k]);
          for (int v = 0; v < kVectors; ++v) {
            sums[r][v] = hn::MulAdd(value, b_row[v], sums[r][v]);
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          hn::Store(sums[r][v], d, args.c + (row + r) * kTileCols + col + v * lanes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(MultiplyF32);

const TileGemm& F32TileGemm() {
  static const TileGemm gemm = {DType::kF32,
                                [](const TileGemmArgs& args) {
                                  HWY_DYNAMIC_DISPATCH(MultiplyF32)
                                  (args);
                                },
                                [] {}, [] {}};
  return gemm;
}

const TileGemm& ChooseTileGemm(DType dtype) {
  if (dtype == DType::kF32) return F32TileGemm();
  return HasAmxBf16() ? AmxBf16TileGemm() : Avx512Bf16TileGemm();
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
