// Bound by memory: reads each value sum of the zone once, 2 * head_dim bytes (in int8 head_dim +
// 2).
//
// A block adds up kClustersPerPart clusters of one (sequence, KV head), always the same ones, so a
// row's result does not depend on its batch; a second kernel merges the parts by (max, sum).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/group_slice.h"
#include "gpu_worker/ops/cuda/meta_runs.cuh"
#include "gpu_worker/ops/index/cuda/estimate.h"
#include "gpu_worker/ops/index/estimate_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kClustersPerWarp = kClustersPerPart / kWarps;
// Query heads of a launch: what shared memory has room for.
template <int kDims>
constexpr int kMaxHeads = kDims > 128 ? 4 : 8;
constexpr uint32_t kAllLanes = 0xffffffffu;

struct EstimateParams {
  MetaRuns runs;
  const MetaIndexView* indexes;
  uint32_t layer;
  GroupSlice slice;
  int32_t num_query_heads;
  const float* scores;
  int64_t max_clusters;
  const int32_t* estimated;
  const int32_t* num_estimated;
  int64_t max_estimated;
  const int32_t* candidates;  // before those
  const int32_t* num_candidates;
  int64_t max_candidates;
  int32_t max_parts;
  // Of the parts: [batch, query_heads, max_parts (, head_dim)].
  float* part_max;
  float* part_sum;
  float* part_acc;
  float* max;
  float* sum;
  float* acc;
};

// The zone of a row: candidates, then the estimated clusters.
struct Zone {
  const int32_t* candidates;
  const int32_t* estimated;
  int32_t num_candidates;
  int32_t size;

  __device__ Zone(const EstimateParams& params, int64_t row)
      : candidates(params.candidates + row * params.max_candidates),
        estimated(params.estimated + row * params.max_estimated),
        num_candidates(params.max_candidates == 0 ? 0 : params.num_candidates[row]),
        size(num_candidates + params.num_estimated[row]) {}
  __device__ int32_t Cluster(int32_t i) const {
    return i < num_candidates ? candidates[i] : estimated[i - num_candidates];
  }
};

__device__ float Exp(float x) { return exp2f(x * 1.4426950408889634f); }

// Some consecutive elements of a vector, as they are read.
template <typename Element, int kCount>
struct alignas(sizeof(Element) * kCount) Pack {
  Element elements[kCount];
};

// int8 stays packed until it is used.
template <int kCount>
struct Pack<int8_t, kCount> {
  std::conditional_t<kCount == 4, uint32_t, uint16_t> elements;
};
template <>
struct alignas(8) Pack<int8_t, 8> {
  Pack<int8_t, 4> halves[2];
};

__device__ float ToFloat(float value) { return value; }
__device__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename Element, int kCount>
__device__ float ElementOf(const Pack<Element, kCount>& pack, int i) {
  return ToFloat(pack.elements[i]);
}
// With its sign turned, the byte is the number + 128; under the exponent of 2^23 it is that many
// ones. The instruction that converts has a quarter of the rate.
template <int kCount>
__device__ float ElementOf(const Pack<int8_t, kCount>& pack, int i) {
  const uint32_t bytes = uint32_t{pack.elements} ^ 0x80808080u;
  return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7540u + static_cast<uint32_t>(i))) -
         8388736.0f;
}
__device__ float ElementOf(const Pack<int8_t, 8>& pack, int i) {
  return ElementOf(pack.halves[i / 4], i % 4);
}

template <int kDims, int kHeads>
struct PartShared {
  const std::byte* sums[kClustersPerPart];  // where the value sums lie
  float weights[kHeads][kClustersPerPart];
  float warp_max[kHeads][kClustersPerPart / 32];
  float warp_sum[kHeads][kClustersPerPart / 32];
  float partial[kWarps][kHeads][kDims];
};

// One cluster of the zone; of size 0 and with scores of -inf where there is none.
template <int kHeads>
struct Place {
  float size;
  float value_scale;  // of the value sum, if it is in int8
  float x[kHeads];    // scores
};

// Begins to read the cluster at `index` of the row's zone, of which `count` from `first` on are
// this part's; says where its value sum lies.
template <typename Element, int kDims, int kHeads>
__device__ Place<kHeads> ReadPlace(const EstimateParams& params, const Zone& zone, int64_t row,
                                   int32_t first, int32_t count, const std::byte** sum) {
  const uint32_t head = blockIdx.x;
  const int index = static_cast<int>(threadIdx.x);
  // Places beyond the zone read its first cluster, with weight 0.
  const bool is_place = index < count;
  const int32_t cluster = zone.Cluster(first + (is_place ? index : 0));
  const auto in_block = static_cast<uint32_t>(cluster) % kClustersPerMetaBlock;
  const MetaBlockId block =
      params.indexes[blockIdx.z].block_ids[static_cast<uint32_t>(cluster) / kClustersPerMetaBlock];
  *sum = params.runs.ValueSums(block, params.layer, head) + in_block * params.runs.value_sum_bytes;
  Place<kHeads> place;
  if constexpr (std::is_same_v<Element, int8_t>) {
    place.value_scale = __half2float(
        reinterpret_cast<const __half*>(params.runs.ValueSums(block, params.layer, head) +
                                        kClustersPerMetaBlock * kDims)[in_block]);
  }
  place.size =
      is_place
          ? static_cast<float>(params.runs.Entries(block, params.layer, head)[in_block].num_tokens)
          : 0;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    const int64_t query_row = row * params.slice.group + params.slice.first + g;
    place.x[g] = is_place && g < params.slice.count
                     ? params.scores[query_row * params.max_clusters + cluster]
                     : -INFINITY;
  }
  return place;
}

// Turns scores into weights against the part's maximum, and adds up the sizes they weigh. All
// threads of the block take part; the first kClustersPerPart have a place.
template <typename Element, int kDims, int kHeads>
__device__ void FindWeights(const Place<kHeads>& place, PartShared<kDims, kHeads>& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread < kClustersPerPart) {
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float max = place.x[g];
      for (int step = 16; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, step));
      }
      if (lane == 0) shared.warp_max[g][warp] = max;
    }
  }
  __syncthreads();
  if (thread < kClustersPerPart) {
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float max = shared.warp_max[g][0];
      for (int i = 1; i < kClustersPerPart / 32; ++i) max = fmaxf(max, shared.warp_max[g][i]);
      const float weight = place.x[g] == -INFINITY ? 0 : Exp(place.x[g] - max);
      shared.weights[g][thread] =
          std::is_same_v<Element, int8_t> ? weight * place.value_scale : weight;
      float sum = weight * place.size;
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (lane == 0) shared.warp_sum[g][warp] = sum;
    }
  }
  __syncthreads();
}

// grid: [kv_heads, max_parts, batch], as in centroid_score.cu
template <typename Element, int kDims, int kHeads>
__global__ void __launch_bounds__(kThreads) EstimatePart(const EstimateParams params) {
  constexpr int kPerLane = kDims / 32;
  using Values = Pack<Element, kPerLane>;
  __shared__ PartShared<kDims, kHeads> shared;
  const int64_t row = static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x;
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kClustersPerPart;
  const Zone zone(params, row);
  const int32_t count = min(kClustersPerPart, zone.size - first);
  if (count <= 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  // All loads are under way before the first result is used.
  Place<kHeads> place;
  if (thread < kClustersPerPart) {
    place =
        ReadPlace<Element, kDims, kHeads>(params, zone, row, first, count, &shared.sums[thread]);
  }
  __syncthreads();
  Values values[kClustersPerWarp];
#pragma unroll
  for (int i = 0; i < kClustersPerWarp; ++i) {
    values[i] = reinterpret_cast<const Values*>(shared.sums[warp * kClustersPerWarp + i])[lane];
  }
  FindWeights<Element>(place, shared);

  float acc[kHeads][kPerLane] = {};
#pragma unroll
  for (int i = 0; i < kClustersPerWarp; ++i) {
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      const float weight = shared.weights[g][warp * kClustersPerWarp + i];
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) acc[g][j] += weight * ElementOf(values[i], j);
    }
  }
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) shared.partial[warp][g][lane * kPerLane + j] = acc[g][j];
  }
  __syncthreads();
  const int64_t first_part =
      (row * params.slice.group + params.slice.first) * params.max_parts + blockIdx.y;
  for (int i = thread; i < params.slice.count * kDims; i += kThreads) {
    const int g = i / kDims;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared.partial[w][g][i % kDims];
    params.part_acc[(first_part + g * params.max_parts) * kDims + i % kDims] = sum;
  }
  if (thread < params.slice.count) {
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < kClustersPerPart / 32; ++i) {
      max = fmaxf(max, shared.warp_max[thread][i]);
      sum += shared.warp_sum[thread][i];
    }
    params.part_max[first_part + thread * params.max_parts] = max;
    params.part_sum[first_part + thread * params.max_parts] = sum;
  }
}

// grid: [batch * query_heads]; a thread for each dimension.
template <int kDims>
__global__ void __launch_bounds__(kDims) MergeParts(const EstimateParams params) {
  const int64_t query_row = blockIdx.x;
  const int32_t size = Zone(params, query_row / params.slice.group).size;
  const int32_t num_parts = min(params.max_parts, (size + kClustersPerPart - 1) / kClustersPerPart);
  const float* part_max = params.part_max + query_row * params.max_parts;
  const float* part_sum = params.part_sum + query_row * params.max_parts;
  const float* part_acc = params.part_acc + query_row * params.max_parts * kDims + threadIdx.x;
  float max = -INFINITY, sum = 0, acc = 0;
  constexpr int kAtOnce = 16;
  for (int32_t first = 0; first < num_parts; first += kAtOnce) {
    float maxes[kAtOnce], sums[kAtOnce], accs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is_part = first + i < num_parts;
      maxes[i] = is_part ? part_max[first + i] : -INFINITY;
      sums[i] = is_part ? part_sum[first + i] : 0;
      accs[i] = is_part ? part_acc[(first + i) * kDims] : 0;
    }
    float new_max = max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) new_max = fmaxf(new_max, maxes[i]);
    if (new_max == -INFINITY) continue;
    const float old = Exp(max - new_max);
    sum *= old;
    acc *= old;
    max = new_max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float factor = Exp(maxes[i] - max);
      sum += factor * sums[i];
      acc += factor * accs[i];
    }
  }
  params.acc[query_row * kDims + threadIdx.x] = acc;
  if (threadIdx.x == 0) {
    params.max[query_row] = max;
    params.sum[query_row] = sum;
  }
}

// The parts of a slice's heads.
template <typename Element, int kDims>
cudaError_t LaunchParts(const EstimateParams& params, const dim3& grid, cudaStream_t stream) {
  const auto run = [&](auto heads) {
    EstimatePart<Element, kDims, heads()><<<grid, kThreads, 0, stream>>>(params);
  };
  if (params.max_parts > 0) {
    if (params.slice.count == 1) {
      run(std::integral_constant<int, 1>());
    } else if (params.slice.count == 2) {
      run(std::integral_constant<int, 2>());
    } else if (params.slice.count <= 4) {
      run(std::integral_constant<int, 4>());
    } else {
      run(std::integral_constant<int, kMaxHeads<kDims>>());
    }
  }
  return cudaGetLastError();
}

template <typename Element, int kDims>
absl::Status Launch(EstimateParams params, int32_t group, const dim3& grid, cudaStream_t stream) {
  RETURN_IF_ERROR(ForSlices(group, kMaxHeads<kDims>, [&](const GroupSlice& slice) {
    params.slice = slice;
    return CudaStatus(LaunchParts<Element, kDims>(params, grid, stream), "estimate");
  }));
  MergeParts<kDims>
      <<<grid.z* static_cast<uint32_t>(params.num_query_heads), kDims, 0, stream>>>(params);
  return CudaStatus(cudaGetLastError(), "estimate");
}

template <int kDims>
auto LaunchFor(DType value_sum) {
  if (value_sum == DType::kF32) return Launch<float, kDims>;
  return value_sum == DType::kInt8 ? Launch<int8_t, kDims> : Launch<__nv_bfloat16, kDims>;
}

}  // namespace

absl::Status Estimate(CudaStream& stream, const EstimateArgs& args) {
  RETURN_IF_ERROR(CheckEstimate(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  const KvGeometry& geometry = args.pool.geometry;
  const auto num_heads = static_cast<int32_t>(geometry.num_kv_heads);
  const int32_t group = args.num_query_heads / num_heads;
  const size_t need = EstimateScratchBytes(args.batch, args.num_query_heads,
                                           static_cast<int32_t>(geometry.head_dim),
                                           args.max_estimated + args.max_candidates);
  RETURN_IF_ERROR(CheckArg(args.scratch.size() >= need, "estimate", "needs ", need,
                           " bytes of scratch, has ", args.scratch.size()));
  if (args.batch == 0) return absl::OkStatus();
  const int64_t parts = MaxEstimateParts(args.max_estimated + args.max_candidates);
  const int64_t all_parts = int64_t{args.batch} * args.num_query_heads * parts;
  auto* scratch = reinterpret_cast<float*>(args.scratch.device_data());
  const EstimateParams params{
      .runs = MetaRuns(args.pool),
      .indexes = args.indexes.device_data(),
      .layer = args.layer,
      .slice = {},
      .num_query_heads = args.num_query_heads,
      .scores = args.scores.device_data(),
      .max_clusters = args.max_clusters,
      .estimated = args.estimated.device_data(),
      .num_estimated = args.num_estimated.device_data(),
      .max_estimated = args.max_estimated,
      .candidates = args.candidates.device_data(),
      .num_candidates = args.num_candidates.device_data(),
      .max_candidates = args.max_candidates,
      .max_parts = static_cast<int32_t>(parts),
      .part_max = scratch + all_parts * geometry.head_dim,
      .part_sum = scratch + all_parts * (geometry.head_dim + 1),
      .part_acc = scratch,
      .max = args.out.max.device_data(),
      .sum = args.out.sum.device_data(),
      .acc = args.out.acc.device_data(),
  };
  const dim3 grid(geometry.num_kv_heads, static_cast<uint32_t>(parts),
                  static_cast<uint32_t>(args.batch));
  const DType value_sum = geometry.format.value_sum.element;
  const auto launch = geometry.head_dim == 256   ? LaunchFor<256>(value_sum)
                      : geometry.head_dim == 128 ? LaunchFor<128>(value_sum)
                                                 : LaunchFor<64>(value_sum);
  return launch(params, group, grid, stream.get());
}

}  // namespace retroinfer::cuda
