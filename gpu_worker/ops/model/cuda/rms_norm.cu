// Bound by the bytes of `in` and `out`; at one row by the latency of a reduction over a block.
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/rms_norm.h"
#include "gpu_worker/ops/model/cuda/rms_norm_parts.cuh"
#include "gpu_worker/ops/model/rms_norm_check.h"

namespace retroinfer::cuda {
namespace {

struct RmsNormLaunch {
  const __nv_bfloat16* in;
  int64_t in_stride;
  NormLaunch norm;
  int64_t width;  // of what is normalised
};

template <int kWidth>
__device__ void AddTo(const __nv_bfloat16* out, int64_t at, float* values) {
  if constexpr (kWidth == 8) {
    float before[8];
    Load8(out, at, before);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __fadd_rn(values[i], before[i]);
  } else {
    values[0] = __fadd_rn(values[0], __bfloat162float(out[at]));
  }
}

// blockIdx.x: row; blockIdx.y: head. One element (unaligned rows) or eight at a time. A thread
// reads again only what it alone writes, so `out` may be `in`, or be added to.
template <int kWidth>
__global__ void __launch_bounds__(kNormThreads) RmsNormKernel(const RmsNormLaunch launch) {
  const NormLaunch& norm = launch.norm;
  const __nv_bfloat16* const in =
      launch.in + blockIdx.x * launch.in_stride + blockIdx.y * launch.width;
  __nv_bfloat16* const out = norm.out + blockIdx.x * norm.out_stride + blockIdx.y * launch.width;
  AllowNextKernel();
  AwaitLastKernel();
  float values[kWidth];
  const auto load = [&](int64_t at) {
    if constexpr (kWidth == 8) {
      Load8(in, at, values);
    } else {
      values[0] = __bfloat162float(in[at]);
    }
  };
  float squares = 0;
  for (int64_t at = threadIdx.x * kWidth; at < launch.width; at += kNormThreads * kWidth) {
    load(at);
    squares = WithSquares<kWidth>(squares, values);
  }
  __shared__ float sums[kNormWarps];
  const float factor = NormFactor(BlockSum(squares, sums), launch.width, norm.epsilon, norm.scale);
  for (int64_t at = threadIdx.x * kWidth; at < launch.width; at += kNormThreads * kWidth) {
    load(at);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] =
          Normalized(values[i], factor,
                     LoadElement(norm.weight, norm.weight_dtype, at + i) + norm.weight_offset);
    }
    if (norm.accumulate) AddTo<kWidth>(out, at, values);
    if constexpr (kWidth == 8) {
      Store8(out, at, values);
    } else {
      out[at] = __float2bfloat16_rn(values[0]);
    }
  }
}

}  // namespace

absl::Status RmsNorm(CudaStream& stream, const RmsNormArgs& args) {
  RETURN_IF_ERROR(CheckRmsNorm(args, DType::kBf16));
  if (args.in.rows == 0 || args.in.cols == 0) return absl::OkStatus();
  const RmsNormLaunch launch = {reinterpret_cast<const __nv_bfloat16*>(args.in.data),
                                args.in.row_stride, NormLaunchOf(args), args.weight.cols};
  const dim3 grid(static_cast<unsigned>(args.in.rows),
                  static_cast<unsigned>(args.in.cols / args.weight.cols));
  const bool aligned =
      HasAlignedRows(args.in) && HasAlignedRows(args.out) && args.weight.cols % 8 == 0;
  return CudaStatus(
      LaunchDependent({.grid = grid, .block = dim3(kNormThreads), .stream = stream.get()},
                      aligned ? &RmsNormKernel<8> : &RmsNormKernel<1>, launch),
      "launching rms_norm");
}

}  // namespace retroinfer::cuda
