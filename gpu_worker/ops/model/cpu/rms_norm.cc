#include "gpu_worker/ops/model/cpu/rms_norm.h"

#include <cmath>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"
#include "gpu_worker/ops/model/rms_norm_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/model/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// One row of `cols` elements; `out` may be `in` unless it is added to.
template <bool kAccumulate>
void Normalize(const float* in, const float* weight, float epsilon, float scale, int64_t cols,
               float* out) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto squares = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= cols; i += lanes) {
    const auto v = hn::LoadU(d, in + i);
    squares = hn::MulAdd(v, v, squares);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, squares));
  for (; i < cols; ++i) sum += in[i] * in[i];
  const float factor = scale / std::sqrt(sum / static_cast<float>(cols) + epsilon);
  const auto f = hn::Set(d, factor);
  for (i = 0; i + lanes <= cols; i += lanes) {
    auto value = hn::Mul(hn::Mul(hn::LoadU(d, in + i), f), hn::LoadU(d, weight + i));
    if constexpr (kAccumulate) value = hn::Add(hn::LoadU(d, out + i), value);
    hn::StoreU(value, d, out + i);
  }
  for (; i < cols; ++i) {
    const float value = in[i] * factor * weight[i];
    out[i] = kAccumulate ? out[i] + value : value;
  }
}

void NormalizeRow(const float* in, const float* weight, float epsilon, float scale, int64_t cols,
                  float* out) {
  Normalize<false>(in, weight, epsilon, scale, cols, out);
}

void AddNormalizedRow(const float* in, const float* weight, float epsilon, float scale,
                      int64_t cols, float* out) {
  Normalize<true>(in, weight, epsilon, scale, cols, out);
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(NormalizeRow);
HWY_EXPORT(AddNormalizedRow);

absl::Status RmsNorm(CpuStream& stream, const RmsNormArgs& args) {
  RETURN_IF_ERROR(CheckRmsNorm(args, DType::kF32));
  return stream.Launch([args](ThreadPool& pool) {
    const int64_t cols = args.weight.cols;
    auto* weight =
        reinterpret_cast<float*>(ThreadScratch(static_cast<size_t>(cols) * sizeof(float)));
    ConvertToF32(args.weight.dtype, args.weight.data, weight, cols);
    if (args.weight_offset != 0) {
      for (int64_t i = 0; i < cols; ++i) weight[i] += args.weight_offset;
    }
    ParallelRows(pool, args.in.rows, args.in.cols, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const auto* in = reinterpret_cast<const float*>(args.in.Rows(i, 1).data);
        auto* out = reinterpret_cast<float*>(args.out.Rows(i, 1).data);
        for (int64_t at = 0; at < args.in.cols; at += cols) {
          if (args.accumulate) {
            HWY_DYNAMIC_DISPATCH(AddNormalizedRow)
            (in + at, weight, args.epsilon, args.scale, cols, out + at);
          } else {
            HWY_DYNAMIC_DISPATCH(NormalizeRow)
            (in + at, weight, args.epsilon, args.scale, cols, out + at);
          }
        }
      }
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
