// Checks one way to multiply tiles against doubles.
#pragma once

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "gpu_worker/ops/attention/cpu/tile_gemm.h"
#include "tests/support/device_data.h"

namespace retroinfer::cpu {

// Operands are rounded beforehand, so `tolerance` is for the sums only.
inline void CheckTileGemm(const TileGemm& gemm, double tolerance) {
  using namespace test_support;
  constexpr size_t kCols = kTileCols;
  const size_t width = gemm.dtype == DType::kF32 ? 1 : 2;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  for (const auto& [m, k, a_stride] : {std::tuple<size_t, size_t, size_t>{32, 32, 32},
                                       {64, 32, 128},
                                       {128, 128, 128},
                                       {32, 96, 100},
                                       {96, 64, 65}}) {
    const auto a_values = RandomNormal(m * a_stride, 1), b_values = RandomNormal(k * kCols, 2);
    const auto a = ToBytes(a_values, gemm.dtype);
    const auto a_rounded = FromBytes(a, gemm.dtype);
    const auto b_rounded = FromBytes(ToBytes(b_values, gemm.dtype), gemm.dtype);
    std::vector<float> b_packed(b_values.size());
    for (size_t row = 0; row < k; ++row) {
      for (size_t col = 0; col < kCols; ++col) {
        b_packed[(row / width * kCols + col) * width + row % width] = b_values[row * kCols + col];
      }
    }
    const auto b_bytes = ToBytes(b_packed, gemm.dtype);
    std::vector<Line> b(b_bytes.size() / 64), c(m * kCols * 4 / 64);
    std::memcpy(b.data(), b_bytes.data(), b_bytes.size());
    auto* out = reinterpret_cast<float*>(c.data());
    std::fill_n(out, m * kCols, kNan);
    std::vector<double> want(m * kCols);
    for (const bool accumulate : {false, true}) {
      for (size_t row = 0; row < m; ++row) {
        for (size_t col = 0; col < kCols; ++col) {
          for (size_t i = 0; i < k; ++i) {
            want[row * kCols + col] +=
                double{a_rounded[row * a_stride + i]} * b_rounded[i * kCols + col];
          }
        }
      }
      gemm.begin();
      Multiply(gemm, {.a = a.data(),
                      .a_stride = static_cast<int64_t>(a_stride),
                      .b = b[0].bytes,
                      .c = out,
                      .m = static_cast<int64_t>(m),
                      .k = static_cast<int64_t>(k),
                      .accumulate = accumulate});
      gemm.end();
      EXPECT_LE(RelativeError({out, m * kCols}, want), tolerance)
          << m << " x " << k << ", stride " << a_stride << ", accumulate " << accumulate;
    }
  }
}

}  // namespace retroinfer::cpu
