// A warp for each query and head, 32 keys at a time: a lane has one key for the scores, then all
// lanes share the columns of the values. Bound by instructions.
#include <cuda_bf16.h>

#include "gpu_worker/ops/attention/cuda/chosen_walk.cuh"
#include "gpu_worker/ops/attention/cuda/prefill_attention_window.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kWarps = 4;

__device__ float ToFloat(float value) { return value; }
__device__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ float WarpMax(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, lanes));
  }
  return value;
}
__device__ float WarpSum(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  return value;
}

// blockIdx.x: four queries; blockIdx.y: query head.
// `kHeadDim`: at least the head's. kChosen: blocks are.
template <typename T, bool kWindowed, int kHeadDim, bool kChosen>
__global__ void __launch_bounds__(32 * kWarps)
    PlainPrefillKernel(const __grid_constant__ PrefillLaunch launch) {
  __shared__ float queries[kWarps][kHeadDim];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp;
  if (row >= launch.num_queries) return;
  const int head_dim = launch.head_dim;
  const int query_head = static_cast<int>(blockIdx.y);
  const int64_t column = int64_t{query_head} * head_dim;
  const auto* query =
      reinterpret_cast<const __nv_bfloat16*>(launch.queries) + row * launch.query_stride + column;
  for (int i = lane; i < head_dim; i += 32) queries[warp][i] = ToFloat(query[i]);
  __syncwarp();
  const int64_t kv_offset = query_head / launch.group * launch.capacity * head_dim;
  const T* keys = reinterpret_cast<const T*>(launch.keys) + kv_offset;
  const T* values = reinterpret_cast<const T*>(launch.values) + kv_offset;
  const int64_t end = launch.first_token + row + 1;
  float largest = -INFINITY, sum = 0;
  float acc[kHeadDim / 32] = {};
  const int at = static_cast<int>(launch.first_token + row);
  const KeyWalk<kWindowed, 32> walk(launch.window, at);
  const int num_steps = walk.NumSteps(static_cast<int>(end));
  for (int step = 0; step < num_steps; ++step) {
    if constexpr (kChosen) {
      constexpr int kUnit = static_cast<int>(kQueryUnit);
      const ChosenWalk<32> chosen(launch.chosen, static_cast<int>(gridDim.y), query_head,
                                  static_cast<int>(row) / kUnit, 1);
      if (!chosen.Has(0, step)) continue;
    }
    const int64_t first = walk.FirstKey(step);
    const int count = static_cast<int>(min(int64_t{32}, end - first));
    const int key = static_cast<int>(first) + lane;
    const bool is_seen = key >= walk.FirstOf(step, at) && key <= walk.LastOf(step, at);
    float score = is_seen ? 0.0f : -INFINITY;
    if (is_seen) {
      const T* key = keys + (first + lane) * head_dim;
      for (int i = 0; i < head_dim; ++i) score += queries[warp][i] * ToFloat(key[i]);
    }
    score *= launch.scale_log2;
    const float next = fmaxf(largest, WarpMax(score));
    const float keep = exp2f(largest - Anchor<kWindowed>(next));
    const float weight = exp2f(score - Anchor<kWindowed>(next));
    largest = next;
    sum = sum * keep + WarpSum(weight);
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) acc[i] *= keep;
    for (int t = 0; t < count; ++t) {
      const float shared_weight = __shfl_sync(~0u, weight, t);
      const T* value = values + (first + t) * head_dim;
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) {
        if (32 * i < head_dim) acc[i] += shared_weight * ToFloat(value[32 * i + lane]);
      }
    }
  }
  sum += WeightOfSink(launch.sinks, query_head, largest);
  auto* out =
      reinterpret_cast<__nv_bfloat16*>(launch.out) + row * launch.out_stride + column + lane;
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; ++i) {
    if (32 * i < head_dim) out[32 * i] = __float2bfloat16(acc[i] / sum);
  }
}

template <typename T, int kHeadDim>
auto KernelFor(const PrefillLaunch& launch) {
  if (launch.chooses()) return &PlainPrefillKernel<T, false, kHeadDim, true>;
  return launch.window.exists ? &PlainPrefillKernel<T, true, kHeadDim, false>
                              : &PlainPrefillKernel<T, false, kHeadDim, false>;
}
template <typename T>
auto KernelFor(const PrefillLaunch& launch) {
  return launch.head_dim > 128 ? KernelFor<T, 256>(launch) : KernelFor<T, 128>(launch);
}

}  // namespace

cudaError_t LaunchPlainPrefill(const PrefillLaunch& launch, bool f32_kv, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((int64_t{launch.num_queries} + kWarps - 1) / kWarps),
                  static_cast<unsigned>(launch.num_kv_heads * launch.group));
  const auto kernel = f32_kv ? KernelFor<float>(launch) : KernelFor<__nv_bfloat16>(launch);
  kernel<<<grid, 32 * kWarps, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
