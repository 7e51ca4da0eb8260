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

template <class D>
HWY_INLINE void SiluMulAt(D d, const float* gate, const float* up, float* out) {
  const auto g = hn::LoadU(d, gate);
  // exp(88) is still finite, and g / (1 + exp(88)) already rounds as it should for any smaller g.
  const auto e = ExpOf(d, hn::Min(hn::Neg(g), hn::Set(d, 88.0f)));
  const auto silu = hn::Div(g, hn::Add(hn::Set(d, 1.0f), e));
  hn::StoreU(hn::Mul(silu, hn::LoadU(d, up)), d, out);
}

void SiluMulRow(const float* gate, const float* up, float* out, int64_t cols) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= cols; i += lanes) SiluMulAt(d, gate + i, up + i, out + i);
  for (; i < cols; ++i) SiluMulAt(d1, gate + i, up + i, out + i);
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(SiluMulRow);

absl::Status SiluMul(CpuStream& stream, const SiluMulArgs& args) {
  RETURN_IF_ERROR(CheckSiluMul(args, DType::kF32));
  return stream.Launch([args](ThreadPool& pool) {
    ParallelRows(pool, args.out.rows, args.out.cols, [&args](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        HWY_DYNAMIC_DISPATCH(SiluMulRow)
        (reinterpret_cast<const float*>(args.gate.Rows(i, 1).data),
         reinterpret_cast<const float*>(args.up.Rows(i, 1).data),
         reinterpret_cast<float*>(args.out.Rows(i, 1).data), args.out.cols);
      }
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
