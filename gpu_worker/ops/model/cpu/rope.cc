#include "gpu_worker/ops/model/cpu/rope.h"

#include <cmath>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/model/rope_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/model/cpu/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// Rotates (x[i], x[i + half]) by the angle whose cosine and sine are given.
void RotateHead(float* x, const float* cos, const float* sin, int64_t half) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + half + i);
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, x + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(RotateHead);

namespace {

// What a row's cos and sin are multiplied by, as its position wants it.
float Growth(const RopeTableArgs& args, int64_t row) {
  if (args.growth == 0) return 1;
  const int32_t times = args.positions.device_data()[row] / args.growth_positions;
  return 1 + args.growth * std::log1p(static_cast<float>(times));
}

}  // namespace

absl::Status RopeTable(CpuStream& stream, const RopeTableArgs& args) {
  const auto rows = static_cast<int64_t>(args.positions.size());
  const auto half = static_cast<int64_t>(args.inv_freq.size());
  RETURN_IF_ERROR(CheckRopeTable(args));
  return stream.Launch([args, rows, half](ThreadPool& pool) {
    constexpr int64_t kCostOfSinCos = 16;  // elements of plain arithmetic that take as long
    ParallelRows(pool, rows, half * kCostOfSinCos, [&args, half](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const auto position = static_cast<float>(args.positions.device_data()[row]);
        const float factor = args.attention_factor * Growth(args, row);
        for (int64_t i = 0; i < half; ++i) {
          const float angle = position * args.inv_freq.device_data()[i];
          args.cos.device_data()[row * half + i] = std::cos(angle) * factor;
          args.sin.device_data()[row * half + i] = std::sin(angle) * factor;
        }
      }
    });
  });
}

absl::Status Rope(CpuStream& stream, const RopeArgs& args) {
  RETURN_IF_ERROR(CheckRope(args, DType::kF32));
  return stream.Launch([args](ThreadPool& pool) {
    ParallelRows(pool, args.x.rows, args.x.cols, [&args](int64_t first, int64_t last) {
      const int64_t half = args.half();
      for (int64_t row = first; row < last; ++row) {
        auto* x = reinterpret_cast<float*>(args.x.Rows(row, 1).data);
        for (int64_t head = 0; head < args.x.cols; head += args.head_dim) {
          HWY_DYNAMIC_DISPATCH(RotateHead)
          (x + head, args.cos.device_data() + row * half, args.sin.device_data() + row * half,
           half);
        }
        float* const keys = x + args.x.cols - static_cast<int64_t>(args.offsets.size());
        for (size_t i = 0; i < args.offsets.size(); ++i) keys[i] -= args.offsets.device_data()[i];
      }
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
