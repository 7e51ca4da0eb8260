// Bound by the bytes of `x`, read and written once.
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/rope.h"
#include "gpu_worker/ops/model/rope_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;

// One thread an angle.
__global__ void __launch_bounds__(kThreads)
    RopeTableKernel(const int32_t* positions, const float* inv_freq, float attention_factor,
                    float growth, int32_t growth_positions, int64_t half, int64_t size, float* cos,
                    float* sin) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size) return;
  const float angle = static_cast<float>(positions[i / half]) * inv_freq[i % half];
  float factor = attention_factor;
  if (growth != 0) {
    factor *= 1 + growth * log1pf(static_cast<float>(positions[i / half] / growth_positions));
  }
  cos[i] = cosf(angle) * factor;
  sin[i] = sinf(angle) * factor;
}

struct RopeLaunch {
  __nv_bfloat16* x;
  int64_t row_stride;
  int64_t pairs;  // of a row
  int64_t head_dim;
  int64_t half;  // of the dimensions that are rotated
  const float* cos;
  const float* sin;
  const float* offsets;  // of the heads from that of pair `first_offset` on
  int64_t first_offset;
};

// One thread a pair of elements: blockIdx.x is the row.
__global__ void __launch_bounds__(kThreads) RopeKernel(const RopeLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= launch.pairs) return;
  const int64_t half = launch.half;
  const int64_t row = blockIdx.x;
  const float c = launch.cos[row * half + i % half];
  const float s = launch.sin[row * half + i % half];
  __nv_bfloat16* const low =
      launch.x + row * launch.row_stride + i / half * launch.head_dim + i % half;
  const float a = __bfloat162float(low[0]);
  const float b = __bfloat162float(low[half]);
  float low_offset = 0, high_offset = 0;
  if (i >= launch.first_offset) {
    const int64_t pair = i - launch.first_offset;
    const float* const offsets = launch.offsets + pair / half * 2 * half + pair % half;
    low_offset = offsets[0];
    high_offset = offsets[half];
  }
  low[0] = __float2bfloat16_rn(a * c - b * s - low_offset);
  low[half] = __float2bfloat16_rn(b * c + a * s - high_offset);
}

}  // namespace

absl::Status RopeTable(CudaStream& stream, const RopeTableArgs& args) {
  RETURN_IF_ERROR(CheckRopeTable(args));
  const auto half = static_cast<int64_t>(args.inv_freq.size());
  const int64_t size = static_cast<int64_t>(args.positions.size()) * half;
  if (size == 0) return absl::OkStatus();
  RopeTableKernel<<<static_cast<unsigned>(DivideUp(size, kThreads)), kThreads, 0, stream.get()>>>(
      args.positions.device_data(), args.inv_freq.device_data(), args.attention_factor, args.growth,
      args.growth_positions, half, size, args.cos.device_data(), args.sin.device_data());
  return LaunchStatus("launching rope_table");
}

absl::Status Rope(CudaStream& stream, const RopeArgs& args) {
  RETURN_IF_ERROR(CheckRope(args, DType::kBf16));
  const int64_t pairs = args.x.cols / args.head_dim * args.half();
  if (args.x.rows == 0 || pairs == 0) return absl::OkStatus();
  const dim3 grid(static_cast<unsigned>(args.x.rows),
                  static_cast<unsigned>(DivideUp(pairs, kThreads)));
  const RopeLaunch launch = {reinterpret_cast<__nv_bfloat16*>(args.x.data),
                             args.x.row_stride,
                             pairs,
                             args.head_dim,
                             args.half(),
                             args.cos.device_data(),
                             args.sin.device_data(),
                             args.offsets.device_data(),
                             pairs - static_cast<int64_t>(args.offsets.size() / 2)};
  return CudaStatus(LaunchDependent({.grid = grid, .block = dim3(kThreads), .stream = stream.get()},
                                    &RopeKernel, launch),
                    "launching rope");
}

}  // namespace retroinfer::cuda
