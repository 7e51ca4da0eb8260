#include "gpu_worker/ops/model/cpu/silu_mul.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/model/silu_mul_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/model/cpu/silu_mul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// What exp is taken of.
template <GatedActivation kActivation, class D, class V>
HWY_INLINE V Exponent(D d, V g) {
  if constexpr (kActivation == GatedActivation::kSilu) return hn::Neg(g);
  if constexpr (kActivation == GatedActivation::kClampedSwiglu) {
    return hn::Mul(g, hn::Set(d, -kClampedSwigluSlope));
  }
  const auto cubic = hn::Mul(hn::Mul(g, g), hn::Set(d, kGeluTanhCubic));
  return hn::Mul(hn::MulAdd(cubic, g, g), hn::Set(d, -2 * kGeluTanhSlope));
}

template <GatedActivation kActivation, class D>
HWY_INLINE void GateAt(D d, const float* gate, const float* up, float* out) {
  auto g = hn::LoadU(d, gate);
  auto u = hn::LoadU(d, up);
  if constexpr (kActivation == GatedActivation::kClampedSwiglu) {
    const auto limit = hn::Set(d, kClampedSwigluLimit);
    g = hn::Min(g, limit);
    u = hn::Add(hn::Clamp(u, hn::Neg(limit), limit), hn::Set(d, 1.0f));
  }
  // exp(88) is still finite, and g / (1 + exp(88)) already rounds as it should for any smaller g.
  const auto e = ExpOf(d, hn::Min(Exponent<kActivation>(d, g), hn::Set(d, 88.0f)));
  const auto gated = hn::Div(g, hn::Add(hn::Set(d, 1.0f), e));
  hn::StoreU(hn::Mul(gated, u), d, out);
}

template <GatedActivation kActivation>
void GateRow(const float* gate, const float* up, float* out, int64_t cols) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= cols; i += lanes) GateAt<kActivation>(d, gate + i, up + i, out + i);
  for (; i < cols; ++i) GateAt<kActivation>(d1, gate + i, up + i, out + i);
}

void SiluMulRow(const float* gate, const float* up, float* out, int64_t cols) {
  GateRow<GatedActivation::kSilu>(gate, up, out, cols);
}

void GeluMulRow(const float* gate, const float* up, float* out, int64_t cols) {
  GateRow<GatedActivation::kGeluTanh>(gate, up, out, cols);
}

void ClampedMulRow(const float* gate, const float* up, float* out, int64_t cols) {
  GateRow<GatedActivation::kClampedSwiglu>(gate, up, out, cols);
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(SiluMulRow);
HWY_EXPORT(GeluMulRow);
HWY_EXPORT(ClampedMulRow);

absl::Status SiluMul(CpuStream& stream, const SiluMulArgs& args) {
  RETURN_IF_ERROR(CheckSiluMul(args, DType::kF32));
  return stream.Launch([args](ThreadPool& pool) {
    ParallelRows(pool, args.out.rows, args.out.cols, [&args](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const auto* gate = reinterpret_cast<const float*>(args.gate.Rows(i, 1).data);
        const auto* up = reinterpret_cast<const float*>(args.up.Rows(i, 1).data);
        auto* out = reinterpret_cast<float*>(args.out.Rows(i, 1).data);
        switch (args.activation) {
          case GatedActivation::kSilu:
            HWY_DYNAMIC_DISPATCH(SiluMulRow)(gate, up, out, args.out.cols);
            break;
          case GatedActivation::kGeluTanh:
            HWY_DYNAMIC_DISPATCH(GeluMulRow)(gate, up, out, args.out.cols);
            break;
          case GatedActivation::kClampedSwiglu:
            HWY_DYNAMIC_DISPATCH(ClampedMulRow)(gate, up, out, args.out.cols);
            break;
        }
      }
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
