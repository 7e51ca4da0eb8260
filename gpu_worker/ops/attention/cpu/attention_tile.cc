#include "gpu_worker/ops/attention/cpu/attention_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu_worker/ops/cpu/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/attention/cpu/attention_tile.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

using UintTag = hn::Repartition<uint32_t, FloatTag>;

// 2^y for y <= 0; 0 below -126. 2^y = 2^n 2^f with |f| <= 1/2; adding 1.5 * 2^23 rounds y to n and
// leaves n in the low bits of the sum. The polynomials are minimax in relative error: 8e-5, far
// below the rounding of a weight to bf16, or 8e-8.
template <bool kBf16>
HWY_INLINE FloatVec Exp2(FloatTag d, FloatVec y) {
  const UintTag du;
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::Add(y, magic);
  const auto f = hn::Sub(y, hn::Sub(shifted, magic));
  FloatVec p;
  if constexpr (kBf16) {
    p = hn::MulAdd(hn::Set(d, 0.055008959f), f, hn::Set(d, 0.242211375f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.69328297f));
    p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  } else {
    p = hn::MulAdd(hn::Set(d, 0.00132647423f), f, hn::Set(d, 0.00967151798f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.0555073376f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.24022242f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.693146978f));
    p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  }
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  const auto power = hn::BitCast(d, hn::Add(hn::BitCast(du, p), exponent));
  return hn::IfThenElseZero(hn::Ge(y, hn::Set(d, -126.0f)), power);
}

// Two rows of weights, >= 0, as bf16 pairs.
HWY_INLINE void StorePairs(FloatVec even, FloatVec odd, uint32_t* to) {
  const UintTag du;
  const auto half = hn::Set(du, 0x8000u);
  const auto low = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, even), half));
  const auto high = hn::And(hn::Add(hn::BitCast(du, odd), half), hn::Set(du, 0xffff0000u));
  hn::Store(hn::Or(low, high), du, to);
}

// Sets the scores of keys that a column must not see to -inf.
void MaskScores(float* scores, int64_t keys, int64_t last_key) {
  for (int64_t key = std::max<int64_t>(0, last_key + 1); key < keys; ++key) {
    const int64_t hidden = std::min(kTileCols, key - last_key);
    std::fill_n(scores + key * kTileCols, hidden, -std::numeric_limits<float>::infinity());
  }
}

template <bool kBf16>
HWY_INLINE FloatVec WriteWeights(FloatTag d, const float* scores, int64_t keys, FloatVec max,
                                 int64_t col, std::byte* weights) {
  auto sum = hn::Zero(d);
  for (int64_t key = 0; key < keys; key += 2) {
    const float* row = scores + key * kTileCols + col;
    const auto even = Exp2<kBf16>(d, hn::Sub(hn::Load(d, row), max));
    const auto odd = Exp2<kBf16>(d, hn::Sub(hn::Load(d, row + kTileCols), max));
    sum = hn::Add(sum, hn::Add(even, odd));
    if constexpr (kBf16) {
      StorePairs(even, odd, reinterpret_cast<uint32_t*>(weights) + key / 2 * kTileCols + col);
    } else {
      float* out = reinterpret_cast<float*>(weights) + key * kTileCols + col;
      hn::Store(even, d, out);
      hn::Store(odd, d, out + kTileCols);
    }
  }
  return sum;
}

template <bool kBf16>
void Update(float* scores, int64_t keys, int64_t last_key, int64_t head_dim, TileSoftmax& softmax,
            float* acc, std::byte* weights) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (last_key < keys - 1) MaskScores(scores, keys, last_key);
  for (int64_t col = 0; col < kTileCols; col += lanes) {
    const auto old_max = hn::Load(d, softmax.max + col);
    auto max0 = old_max;
    auto max1 = old_max;
    for (int64_t key = 0; key < keys; key += 2) {
      max0 = hn::Max(max0, hn::Load(d, scores + key * kTileCols + col));
      max1 = hn::Max(max1, hn::Load(d, scores + (key + 1) * kTileCols + col));
    }
    const auto max = hn::Max(max0, max1);
    const auto sum = WriteWeights<kBf16>(d, scores, keys, max, col, weights);
    auto old_sum = hn::Load(d, softmax.sum + col);
    if (!hn::AllTrue(d, hn::Eq(max, old_max))) {
      const auto factor = Exp2<false>(d, hn::Sub(old_max, max));
      old_sum = hn::Mul(old_sum, factor);
      for (int64_t i = 0; i < head_dim; ++i) {
        float* row = acc + i * kTileCols + col;
        hn::Store(hn::Mul(hn::Load(d, row), factor), d, row);
      }
      hn::Store(max, d, softmax.max + col);
    }
    hn::Store(hn::Add(old_sum, sum), d, softmax.sum + col);
  }
}

void UpdateF32(float* scores, int64_t keys, int64_t last_key, int64_t head_dim,
               TileSoftmax& softmax, float* acc, std::byte* weights) {
  Update<false>(scores, keys, last_key, head_dim, softmax, acc, weights);
}

void UpdateBf16(float* scores, int64_t keys, int64_t last_key, int64_t head_dim,
                TileSoftmax& softmax, float* acc, std::byte* weights) {
  Update<true>(scores, keys, last_key, head_dim, softmax, acc, weights);
}

#if HWY_TARGET == HWY_SCALAR
void TransposeBf16(const uint16_t* in, int64_t keys, int64_t head_dim, uint16_t* out) {
  for (int64_t key = 0; key < keys; ++key) {
    for (int64_t i = 0; i < head_dim; ++i) out[i * kKeyBlock + key] = in[key * head_dim + i];
  }
}
#else
// Eight keys by one vector at a time: three rounds of interleaving transpose the 8 x 8 block in
// each 128-bit part of the vectors. REQUIRES: keys is a multiple of 8.
void TransposeBf16(const uint16_t* in, int64_t keys, int64_t head_dim, uint16_t* out) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) uint16_t columns[8][HWY_MAX_BYTES / 2];
  for (int64_t key = 0; key < keys; key += 8) {
    for (int64_t i = 0; i < head_dim; i += lanes) {
      hn::Vec<decltype(d)> rows[8];
      for (int r = 0; r < 8; ++r) rows[r] = hn::LoadU(d, in + (key + r) * head_dim + i);
      for (int half = 0; half < 2; ++half) {
        // Elements 4 * half to 4 * half + 3 of each part; pairs, then fours of keys.
        hn::Vec<decltype(d32)> pairs[4];
        for (int r = 0; r < 4; ++r) {
          pairs[r] =
              hn::BitCast(d32, half == 0 ? hn::InterleaveLower(d, rows[2 * r], rows[2 * r + 1])
                                         : hn::InterleaveUpper(d, rows[2 * r], rows[2 * r + 1]));
        }
        const auto low0 = hn::BitCast(d64, hn::InterleaveLower(d32, pairs[0], pairs[1]));
        const auto low1 = hn::BitCast(d64, hn::InterleaveLower(d32, pairs[2], pairs[3]));
        const auto high0 = hn::BitCast(d64, hn::InterleaveUpper(d32, pairs[0], pairs[1]));
        const auto high1 = hn::BitCast(d64, hn::InterleaveUpper(d32, pairs[2], pairs[3]));
        uint16_t(*column)[HWY_MAX_BYTES / 2] = columns + 4 * half;
        hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, low0, low1)), d, column[0]);
        hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, low0, low1)), d, column[1]);
        hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, high0, high1)), d, column[2]);
        hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, high0, high1)), d, column[3]);
      }
      for (int64_t part = 0; part < lanes / 8; ++part) {
        for (int64_t c = 0; c < 8; ++c) {
          std::memcpy(out + (i + part * 8 + c) * kKeyBlock + key, columns[c] + part * 8, 16);
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(UpdateF32);
HWY_EXPORT(UpdateBf16);
HWY_EXPORT(TransposeBf16);

void PackQueries(const float* queries, int64_t row_stride, int64_t rows, int64_t head_dim,
                 float factor, DType dtype, std::byte* out) {
  const auto element = static_cast<int64_t>(DTypeBytes(dtype));
  // Elements of a query that lie together in `out`: one f32, or a pair of bf16.
  const int64_t width = int64_t{sizeof(float)} / element;
  std::memset(out, 0, static_cast<size_t>(head_dim * kTileCols * element));
  for (int64_t row = 0; row < rows; ++row) {
    float scaled[kMaxTileHeadDim];
    std::byte converted[kMaxTileHeadDim * sizeof(float)];
    for (int64_t i = 0; i < head_dim; ++i) scaled[i] = queries[row * row_stride + i] * factor;
    ConvertFromF32(scaled, dtype, converted, head_dim);
    for (int64_t i = 0; i < head_dim / width; ++i) {
      std::memcpy(out + (i * kTileCols + row) * 4, converted + i * 4, 4);
    }
  }
}

void TransposeValues(const std::byte* values, DType in_dtype, int64_t keys, int64_t padded_keys,
                     int64_t head_dim, DType out_dtype, std::byte* out) {
  if (out_dtype == DType::kBf16) {
    auto* to = reinterpret_cast<uint16_t*>(out);
    const auto* from = reinterpret_cast<const uint16_t*>(values);
    const int64_t whole = keys / 8 * 8;
    HWY_DYNAMIC_DISPATCH(TransposeBf16)(from, whole, head_dim, to);
    for (int64_t i = 0; i < head_dim; ++i) {
      for (int64_t key = whole; key < padded_keys; ++key) {
        to[i * kKeyBlock + key] = key < keys ? from[key * head_dim + i] : uint16_t{0};
      }
    }
    return;
  }
  auto* to = reinterpret_cast<float*>(out);
  float row[kMaxTileHeadDim];
  for (int64_t key = 0; key < padded_keys; ++key) {
    if (key < keys) {
      ConvertToF32(in_dtype, values + key * head_dim * static_cast<int64_t>(DTypeBytes(in_dtype)),
                   row, head_dim);
    } else {
      std::fill_n(row, head_dim, 0.0f);
    }
    for (int64_t i = 0; i < head_dim; ++i) to[i * kKeyBlock + key] = row[i];
  }
}

void ResetSoftmax(TileSoftmax& softmax) {
  std::fill_n(softmax.max, kTileCols, -std::numeric_limits<float>::infinity());
  std::fill_n(softmax.sum, kTileCols, 0.0f);
}

void HideKeys(int64_t first, std::span<const int64_t, kTileCols> ends, float* scores) {
  for (int64_t col = 0; col < kTileCols; ++col) {
    for (int64_t key = first; key < ends[static_cast<size_t>(col)]; ++key) {
      scores[key * kTileCols + col] = -std::numeric_limits<float>::infinity();
    }
  }
}

void UpdateTile(float* scores, int64_t keys, int64_t last_key, int64_t head_dim, DType dtype,
                TileSoftmax& softmax, float* acc, std::byte* weights) {
  if (dtype == DType::kF32) {
    HWY_DYNAMIC_DISPATCH(UpdateF32)(scores, keys, last_key, head_dim, softmax, acc, weights);
  } else {
    HWY_DYNAMIC_DISPATCH(UpdateBf16)(scores, keys, last_key, head_dim, softmax, acc, weights);
  }
}

void FinishTile(const float* acc, const TileSoftmax& softmax, float sink, int64_t rows,
                int64_t head_dim, float* out, int64_t out_stride) {
  const bool has_sink = sink > -std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    // A sink far above all scores makes the sum infinite and the result 0, as it should be.
    const float of_sink = has_sink ? std::exp2(sink - softmax.max[row]) : 0.0f;
    const float inverse = 1.0f / (softmax.sum[row] + of_sink);
    for (int64_t i = 0; i < head_dim; ++i) {
      out[row * out_stride + i] = acc[i * kTileCols + row] * inverse;
    }
  }
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
