// Bound by the bytes of the three matrices.
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/gated_activation.cuh"
#include "gpu_worker/ops/model/cuda/silu_mul.h"
#include "gpu_worker/ops/model/silu_mul_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;

struct SiluMulLaunch {
  const __nv_bfloat16* gate;
  int64_t gate_stride;
  const __nv_bfloat16* up;
  int64_t up_stride;
  __nv_bfloat16* out;
  int64_t out_stride;
  int64_t cols;
  GatedActivation activation;
};

// blockIdx.x is the row; a thread computes one element or eight.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) SiluMulKernel(const SiluMulLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= launch.cols) return;
  const __nv_bfloat16* const gate = launch.gate + blockIdx.x * launch.gate_stride;
  const __nv_bfloat16* const up = launch.up + blockIdx.x * launch.up_stride;
  __nv_bfloat16* const out = launch.out + blockIdx.x * launch.out_stride;
  if constexpr (kWidth == 8) {
    float g[8], u[8];
    Load8(gate, at, g);
    Load8(up, at, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) g[i] = GateTimes(launch.activation, g[i], u[i]);
    Store8(out, at, g);
  } else {
    out[at] = __float2bfloat16_rn(
        GateTimes(launch.activation, __bfloat162float(gate[at]), __bfloat162float(up[at])));
  }
}

}  // namespace

absl::Status SiluMul(CudaStream& stream, const SiluMulArgs& args) {
  RETURN_IF_ERROR(CheckSiluMul(args, DType::kBf16));
  if (args.out.rows == 0 || args.out.cols == 0) return absl::OkStatus();
  const SiluMulLaunch launch = {reinterpret_cast<const __nv_bfloat16*>(args.gate.data),
                                args.gate.row_stride,
                                reinterpret_cast<const __nv_bfloat16*>(args.up.data),
                                args.up.row_stride,
                                reinterpret_cast<__nv_bfloat16*>(args.out.data),
                                args.out.row_stride,
                                args.out.cols,
                                args.activation};
  const bool aligned =
      HasAlignedRows(args.gate) && HasAlignedRows(args.up) && HasAlignedRows(args.out);
  const dim3 grid(static_cast<unsigned>(args.out.rows),
                  static_cast<unsigned>(DivideUp(args.out.cols, kThreads * (aligned ? 8 : 1))));
  return CudaStatus(LaunchDependent({.grid = grid, .block = dim3(kThreads), .stream = stream.get()},
                                    aligned ? &SiluMulKernel<8> : &SiluMulKernel<1>, launch),
                    "launching silu_mul");
}

}  // namespace retroinfer::cuda
