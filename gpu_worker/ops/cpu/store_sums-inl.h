// Reduces four vectors at once. A .cc that uses it follows Highway's foreach_target scheme.

// NOLINT(build/header_guard): Highway toggles the guard, as the file is read once for each target.
#if defined(RETROINFER_STORE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RETROINFER_STORE_SUMS_INL_H_
#undef RETROINFER_STORE_SUMS_INL_H_
#else
#define RETROINFER_STORE_SUMS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// out = {sum(a), sum(b), sum(c), sum(e)} * scale.
template <class D>
HWY_INLINE void StoreSums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float scale,
                          float* out) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  out[0] = hn::GetLane(a) * scale;
  out[1] = hn::GetLane(b) * scale;
  out[2] = hn::GetLane(c) * scale;
  out[3] = hn::GetLane(e) * scale;
#else
  // In every 128-bit block: {a0+a2, c0+c2, a1+a3, c1+c3}, then {a, b, c, e}.
  const auto ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
  const auto be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
  const auto blocks = hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
  const hn::Full128<float> d4;
#if HWY_MAX_BYTES == 16
  const auto sums = blocks;
#elif HWY_MAX_BYTES == 32
  const auto sums = hn::Add(hn::LowerHalf(d4, blocks), hn::UpperHalf(d4, blocks));
#else
  const hn::Half<D> dh;
  const auto half = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
  const auto sums = hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half));
#endif
  hn::StoreU(hn::Mul(sums, hn::Set(d4, scale)), d4, out);
#endif
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RETROINFER_STORE_SUMS_INL_H_
