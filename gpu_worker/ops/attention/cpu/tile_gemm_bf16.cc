// The bf16 products, in instructions that Highway does not know.
#include "gpu_worker/ops/attention/cpu/tile_gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace retroinfer::cpu {

#if defined(__x86_64__)
namespace {

#define RI_TARGET_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define RI_TARGET_AMX __attribute__((target("amx-tile,amx-bf16")))

RI_TARGET_AVX512_BF16 __m512bh LoadPairs(const std::byte* from) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(from));
}

RI_TARGET_AVX512_BF16 __m512bh BroadcastPair(const std::byte* from) {
  int pair;
  __builtin_memcpy(&pair, from, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// vdpbf16ps: each f32 lane adds the products of two pairs. Eight rows by 32 columns at a time, in
// 16 accumulators.
RI_TARGET_AVX512_BF16 void MultiplyAvx512(const TileGemmArgs& args) {
  constexpr int kRows = 8;
  constexpr int64_t kPairBytes = 4;
  constexpr int64_t kPairRowBytes = kTileCols * kPairBytes;
  const int64_t a_row_bytes = args.a_stride * 2;
  for (int64_t row = 0; row < args.m; row += kRows) {
    float* c = args.c + row * kTileCols;
    const std::byte* a = args.a + row * a_row_bytes;
    __m512 left[kRows];
    __m512 right[kRows];
    for (int r = 0; r < kRows; ++r) {
      left[r] = args.accumulate ? _mm512_load_ps(c + r * kTileCols) : _mm512_setzero_ps();
      right[r] = args.accumulate ? _mm512_load_ps(c + r * kTileCols + 16) : _mm512_setzero_ps();
    }
    for (int64_t pair = 0; pair < args.k / 2; ++pair) {
      const __m512bh b_left = LoadPairs(args.b + pair * kPairRowBytes);
      const __m512bh b_right = LoadPairs(args.b + pair * kPairRowBytes + 64);
      for (int r = 0; r < kRows; ++r) {
        const __m512bh value = BroadcastPair(a + r * a_row_bytes + pair * kPairBytes);
        left[r] = _mm512_dpbf16_ps(left[r], value, b_left);
        right[r] = _mm512_dpbf16_ps(right[r], value, b_right);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(c + r * kTileCols, left[r]);
      _mm512_store_ps(c + r * kTileCols + 16, right[r]);
    }
  }
}

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

RI_TARGET_AMX void BeginAmx() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}

RI_TARGET_AMX void EndAmx() { _tile_release(); }

// 32 rows by 32 columns of c in tiles 0 to 3; a in tiles 4 and 5, b in tiles 6 and 7.
RI_TARGET_AMX void MultiplyAmx(const TileGemmArgs& args) {
  constexpr int64_t kCStride = kTileCols * 4;
  constexpr int64_t kBStride = kTileCols * 4;  // one pair of rows
  constexpr int64_t kStep = 32;                // of k: one tile
  const int64_t a_stride = args.a_stride * 2;
  for (int64_t row = 0; row < args.m; row += 32) {
    const std::byte* a = args.a + row * a_stride;
    float* c = args.c + row * kTileCols;
    if (args.accumulate) {
      _tile_loadd(0, c, kCStride);
      _tile_loadd(1, c + 16, kCStride);
      _tile_loadd(2, c + 16 * kTileCols, kCStride);
      _tile_loadd(3, c + 16 * kTileCols + 16, kCStride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t k = 0; k < args.k; k += kStep) {
      const std::byte* b = args.b + k / 2 * kBStride;
      _tile_loadd(4, a + k * 2, a_stride);
      _tile_loadd(6, b, kBStride);
      _tile_loadd(7, b + 64, kBStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + 16 * a_stride + k * 2, a_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, kCStride);
    _tile_stored(1, c + 16, kCStride);
    _tile_stored(2, c + 16 * kTileCols, kCStride);
    _tile_stored(3, c + 16 * kTileCols + 16, kCStride);
  }
}

}  // namespace

const TileGemm& Avx512Bf16TileGemm() {
  static const TileGemm gemm = {DType::kBf16, MultiplyAvx512, [] {}, [] {}};
  return gemm;
}

const TileGemm& AmxBf16TileGemm() {
  static const TileGemm gemm = {DType::kBf16, MultiplyAmx, BeginAmx, EndAmx};
  return gemm;
}
#else
const TileGemm& Avx512Bf16TileGemm() { return F32TileGemm(); }
const TileGemm& AmxBf16TileGemm() { return F32TileGemm(); }
#endif

}  // namespace retroinfer::cpu
