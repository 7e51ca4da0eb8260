// A warp for each unit, query head and block of keys: a lane has a group of keys and a group of
// queries. Bound by instructions.
#include <cuda_bf16.h>

#include <cmath>

#include "gpu_worker/ops/attention/cuda/block_choice_kernels.h"
#include "gpu_worker/ops/attention/cuda/block_choice_units.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kAllLanes = 0xffffffff;

__device__ float ToFloat(float value) { return value; }
__device__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// blockIdx.x: four blocks of keys, for one pair after the other.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    PlainBlockWeightsKernel(const __grid_constant__ ChoiceLaunch launch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned of_pair = (launch.num_blocks + kWarps - 1) / kWarps;
  const int64_t pair = blockIdx.x / of_pair;
  const int64_t block = int64_t{blockIdx.x % of_pair} * kWarps + threadIdx.x / 32;
  const int heads = launch.num_kv_heads * launch.group;
  const int unit = static_cast<int>(pair) / heads, head = static_cast<int>(pair) % heads;
  if (block >= BlocksOfUnit(launch.first_unit + unit)) return;
  const int of_queries = lane / kBlockGroups;
  const int64_t of_keys = block * kBlockGroups + lane % kBlockGroups;
  const bool is_seen = of_keys <= LastSeenGroup(launch.first_unit + unit, of_queries);
  float score = -INFINITY;
  if (is_seen) {
    const int head_dim = launch.head_dim;
    const T* key = reinterpret_cast<const T*>(launch.keys) +
                   (head / launch.group * launch.capacity + of_keys * kGroupTokens) * head_dim;
    const auto* query =
        reinterpret_cast<const __nv_bfloat16*>(launch.queries) +
        (int64_t{unit} * kUnitTokens + (of_queries + 1) * kGroupTokens - 1) * launch.query_stride +
        int64_t{head} * head_dim;
    score = 0;
    for (int s = 0; s < kGroupTokens; ++s) {
      for (int i = 0; i < head_dim; ++i) score += ToFloat(query[i]) * ToFloat(key[i]);
      key += head_dim;
      query -= launch.query_stride;
    }
    score *= launch.scale_log2;
  }
  float largest = score;
#pragma unroll
  for (int lanes = 1; lanes < kBlockGroups; lanes *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  }
  float sum = largest == -INFINITY ? 0.0f : exp2f(score - largest);
  // The largest of scores that are no numbers is one that is, or none.
  if (isnan(score)) sum = score;
#pragma unroll
  for (int lanes = 1; lanes < kBlockGroups; lanes *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  if (lane % kBlockGroups != 0) return;
  launch.weights[(pair * launch.num_blocks + block) * kUnitGroups + of_queries] =
      largest + log2f(sum);
}

}  // namespace

cudaError_t LaunchPlainBlockWeights(const ChoiceLaunch& launch, bool f32_kv, cudaStream_t stream) {
  const int64_t pairs = int64_t{launch.num_units} * launch.num_kv_heads * launch.group;
  const int64_t blocks = pairs * ((launch.num_blocks + kWarps - 1) / kWarps);
  const auto kernel =
      f32_kv ? &PlainBlockWeightsKernel<float> : &PlainBlockWeightsKernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
