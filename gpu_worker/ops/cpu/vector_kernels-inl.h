// Vector kernels that the operations share, compiled once for each instruction set. A .cc that uses
// them follows Highway's foreach_target scheme and includes this file after highway.h.

// NOLINT(build/header_guard): Highway toggles the guard, as the file is read once for each target.
#if defined(RETROINFER_VECTOR_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RETROINFER_VECTOR_KERNELS_INL_H_
#undef RETROINFER_VECTOR_KERNELS_INL_H_
#else
#define RETROINFER_VECTOR_KERNELS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using Bf16 = hwy::bfloat16_t;

// Loads Lanes(d) elements at `from` as f32.
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const Bf16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Repartition<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const int8_t* from) {
  const hn::Rebind<int8_t, D> d8;
  const hn::Rebind<int32_t, D> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, from)));
}

// Loads Lanes(d) scales at `from`, f16 as bits, as f32: none is negative or infinite, some may be
// NaN. Highway's own conversion takes NaN for a number on processors without an instruction for it.
template <class D>
HWY_INLINE hn::Vec<D> LoadScales(D d, const uint16_t* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Repartition<uint32_t, D> d32;
  const auto bits = hn::ShiftLeft<13>(hn::PromoteTo(d32, hn::LoadU(d16, from)));
  const auto scales = hn::Mul(hn::BitCast(d, bits), hn::Set(d, 0x1p112f));
  return hn::IfThenElse(hn::Ge(scales, hn::Set(d, 65536.0f)), hn::NaN(d), scales);
}

// Rounds to the nearest bf16, ties to even; the result is in the upper half of each lane, the lower
// half is undefined. NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<hn::Repartition<uint32_t, D>> RoundToBf16(D /*d*/, hn::Vec<D> v) {
  const hn::Repartition<uint32_t, D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::IfThenElse(is_nan, hn::Set(du, 0x7fc00000u), rounded);
}

template <class D>
HWY_INLINE void StoreF32(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}
template <class D>
HWY_INLINE void StoreF32(D d, hn::Vec<D> v, Bf16* to) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(RoundToBf16(d, v))), d16,
             reinterpret_cast<uint16_t*>(to));
}

// exp(v), relative error below 2e-7; exactly 0 for -inf and wherever the result would be subnormal.
template <class D>
HWY_INLINE hn::Vec<D> ExpOf(D d, hn::Vec<D> v) {
  return hn::IfThenElseZero(hn::Gt(v, hn::Set(d, -87.0f)), hn::Exp(d, v));
}

// Sum of a[i] * b[i]. REQUIRES: size is a multiple of 64.
template <typename T>
HWY_INLINE float Dot(const T* a, const float* b, size_t size) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  for (size_t i = 0; i < size; i += 2 * lanes) {
    sum0 = hn::MulAdd(LoadF32(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(LoadF32(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

// acc[i] += weight * row[i]. REQUIRES: size is a multiple of 64.
template <typename T>
HWY_INLINE void AddScaled(const T* row, float weight, float* acc, size_t size) {
  const FloatTag d;
  const auto w = hn::Set(d, weight);
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    hn::StoreU(hn::MulAdd(w, LoadF32(d, row + i), hn::LoadU(d, acc + i)), d, acc + i);
  }
}

// x[i] *= factor. REQUIRES: size is a multiple of 64.
HWY_INLINE void Scale(float factor, float* x, size_t size) {
  const FloatTag d;
  const auto f = hn::Set(d, factor);
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(f, hn::LoadU(d, x + i)), d, x + i);
  }
}

// Largest element, -inf when size is 0.
HWY_INLINE float MaxOf(const float* x, size_t size) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const float lowest = -__builtin_inff();
  auto max = hn::Set(d, lowest);
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) max = hn::Max(max, hn::LoadU(d, x + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, max));
  for (; i < size; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// x[i] = exp(x[i] - max); returns the sum.
HWY_INLINE float ExpMinusMax(float max, float* x, size_t size) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, max);
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto e = ExpOf(d, hn::Sub(hn::LoadU(d, x + i), m));
    hn::StoreU(e, d, x + i);
    sum = hn::Add(sum, e);
  }
  float result = hn::GetLane(hn::SumOfLanes(d, sum));
  const hn::CappedTag<float, 1> d1;
  for (; i < size; ++i) {
    x[i] = hn::GetLane(ExpOf(d1, hn::Set(d1, x[i] - max)));
    result += x[i];
  }
  return result;
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RETROINFER_VECTOR_KERNELS_INL_H_
