// The second kernel of decode attention: merges the parts that decode_attention_kernel.cu left in
// scratch.
#include <cmath>
#include <numbers>

#include "gpu_worker/ops/attention/cuda/decode_attention_kernel.h"
#include "gpu_worker/ops/attention/cuda/decode_attention_plan.cuh"
#include "gpu_worker/ops/attention/cuda/decode_attention_state.cuh"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {
namespace {

// A lane's numbers of a part's values.
template <int kDims>
struct alignas(kDims > 4 ? 16 : 4 * kDims) LaneValues {
  float of_dims[kDims];
};

// Sums the parts of a query head: each warp every fourth of them, relative to its own maximum.
template <int kHeadDim>
__device__ void SumHead(const DecodeLaunch& launch, const UnitParts& unit, int32_t q,
                        float (&maxima)[kDecodeWarps], float (&sums)[kDecodeWarps],
                        float (&accs)[kDecodeWarps][kHeadDim]) {
  constexpr int kDims = kHeadDim / 32;
  constexpr int kAhead = kDims > 4 ? 8 : 16;  // loads under way
  using Values = LaneValues<kDims>;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int64_t first = int64_t{unit.first} * launch.slice.count + q;
  const float2* max_sums = PartMaxSums(launch) + first;
  const auto* values =
      reinterpret_cast<const Values*>(PartValues(launch) + first * kHeadDim) + lane;
  float max = -INFINITY, sum = 0, acc[kDims] = {};
  for (int32_t begin = warp; begin < unit.count; begin += kAhead * kDecodeWarps) {
    Values ahead[kAhead];
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int64_t part = begin + i * kDecodeWarps;
      ahead[i] =
          part < unit.count ? values[part * launch.slice.count * (kHeadDim / kDims)] : Values{};
    }
    const int64_t part = begin + lane * kDecodeWarps;
    float2 own = {-INFINITY, 0};
    if (lane < kAhead && part < unit.count) own = max_sums[part * launch.slice.count];
    float raised = fmaxf(max, own.x);
    for (int i = 1; i < 32; i *= 2) raised = fmaxf(raised, __shfl_xor_sync(~0u, raised, i));
    const float kept = Exp2(max - ScoreBase(raised));
    const float weight = Exp2(own.x - ScoreBase(raised));
    max = raised;
    sum = sum * kept + weight * own.y;
    for (float& value : acc) value *= kept;
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const float of_part = __shfl_sync(~0u, weight, i);
      for (int d = 0; d < kDims; ++d) acc[d] += of_part * ahead[i].of_dims[d];
    }
  }
  for (int i = 1; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (lane == 0) {
    maxima[warp] = max;
    sums[warp] = sum;
  }
  for (int d = 0; d < kDims; ++d) accs[warp][lane * kDims + d] = acc[d];
}

// Of `left_out`, relative to its own maximum, of that and what was attended. Maxima are of scores
// in base 2; that of nothing is minus infinity.
__device__ float ShareOf(float left_out_max, float left_out, float attended_max, float attended) {
  const float base = ScoreBase(fmaxf(left_out_max, attended_max));
  const float out = left_out * Exp2(left_out_max - base);
  const float all = out + attended * Exp2(attended_max - base);
  return all > 0 ? out / all : 0;
}

// Merges the parts of a query head and its estimate into out; a block for each query head. Bound by
// the latency of two reads: of the plan and what does not depend on it, and of all parts at once.
// Its registers leave it room beside three blocks of the kernel before.
template <int kHeadDim>
__global__ void __launch_bounds__(kDecodeThreads, 4)
    MergeKernel(const __grid_constant__ DecodeLaunch launch) {
  __shared__ float maxima[kDecodeWarps], sums[kDecodeWarps], accs[kDecodeWarps][kHeadDim];
  const auto block = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const GroupSlice& slice = launch.slice;
  const int32_t unit = block / slice.count, q = block % slice.count;
  const int64_t sequence = launch.first_sequence + unit / launch.num_heads;
  const int64_t query_head =
      int64_t{launch.first_head + unit % launch.num_heads} * slice.group + slice.first + q;
  const int64_t query = sequence * launch.kv_heads * slice.group + query_head;
  AllowNextKernel();
  AwaitLastKernel();
  const UnitParts parts = PlannedUnits(launch)[unit];
  constexpr int kEach = (kHeadDim + kDecodeThreads - 1) / kDecodeThreads;  // dimensions of a thread
  float estimate_max = -INFINITY, estimate_sum = 0, estimate[kEach] = {};
  if (launch.estimate_max != nullptr) {
    estimate_max = launch.estimate_max[query];
    estimate_sum = launch.estimate_sum[query];
    for (int i = 0; i < kEach; ++i) {
      const int d = thread + i * kDecodeThreads;
      if (d < kHeadDim) estimate[i] = launch.estimate_acc[query * kHeadDim + d];
    }
  }
  const float sink =
      launch.sinks == nullptr ? -INFINITY : launch.sinks[query_head] * std::numbers::log2e_v<float>;
  SumHead<kHeadDim>(launch, parts, q, maxima, sums, accs);
  const bool has_estimate = estimate_sum > 0;
  estimate_max = has_estimate ? estimate_max * std::numbers::log2e_v<float> : -INFINITY;
  __syncthreads();
  if (thread >= kHeadDim) return;
  float max = fmaxf(estimate_max, sink);
  for (const float other : maxima) max = fmaxf(max, other);
  const float base = ScoreBase(max);
  float sum = Exp2(sink - base), acc[kEach] = {};
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float weight = Exp2(maxima[w] - base);
    sum += weight * sums[w];
    for (int i = 0; i < kEach; ++i) acc[i] += weight * accs[w][thread + i * kDecodeThreads];
  }
  if (thread == 0 && launch.unseen_max != nullptr) {
    launch.unseen_share[query] = ShareOf(launch.unseen_max[query] * std::numbers::log2e_v<float>,
                                         launch.unseen_sum[query], max, sum);
  }
  if (has_estimate) {
    const float weight = Exp2(estimate_max - base);
    sum += weight * estimate_sum;
    for (int i = 0; i < kEach; ++i) acc[i] += weight * estimate[i];
  }
  auto* out = reinterpret_cast<__nv_bfloat16*>(launch.out) + sequence * launch.out_stride;
  for (int i = 0; i < kEach; ++i) {
    out[query_head * kHeadDim + thread + i * kDecodeThreads] =
        __float2bfloat16_rn(sum == 0 ? 0.0f : acc[i] / sum);
  }
}

}  // namespace

cudaError_t LaunchDecodeMerge(const DecodeLaunch& launch, uint32_t head_dim, bool early,
                              cudaStream_t stream) {
  const auto heads =
      static_cast<unsigned>(launch.num_sequences * launch.num_heads * launch.slice.count);
  return LaunchDependent(
      {.grid = dim3(heads), .block = dim3(kDecodeThreads), .stream = stream, .early = early},
      head_dim == 256   ? &MergeKernel<256>
      : head_dim == 128 ? &MergeKernel<128>
                        : &MergeKernel<64>,
      launch);
}

}  // namespace retroinfer::cuda
