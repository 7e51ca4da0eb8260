// Loads and stores of KV elements (f32, or bf16 held as uint16_t) as f32 vectors, and reductions of
// several vectors at once. Included once for every Highway target; not a normal header.

#if defined(RETROINFER_OPS_CPU_KV_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RETROINFER_OPS_CPU_KV_VECTOR_INL_H_
#undef RETROINFER_OPS_CPU_KV_VECTOR_INL_H_
#else
#define RETROINFER_OPS_CPU_KV_VECTOR_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> LoadKv(D /*d*/, const float* from) {
  return hn::LoadU(D(), from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadKv(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, from))));
}

template <class D>
HWY_INLINE void StoreKv(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}

// Rounds to nearest, ties to even. Not for NaN.
template <class D>
HWY_INLINE void StoreKv(D d, hn::Vec<D> v, uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, hn::ShiftRight<16>(rounded))), du16, to);
}

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

}  // namespace HWY_NAMESPACE
}  // namespace retroinfer::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
