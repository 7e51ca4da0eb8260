// Scores of groups as one matrix product: 16 neighbouring keys of a head lie one after the other,
// so a group of keys is a row of 16 * head_dim numbers as it lies. A group of queries is such a
// row, its queries in reverse order, which the tensor map's coordinates turn. A block has two boxes
// of groups of queries (whole units, all query heads of a KV head) and 256 groups of keys: one
// warpgroup copies 64 columns of them at a time, two take a box each. Eight neighbouring products
// of a row are a block of keys. Bound by the tensor cores, which shared memory can just feed.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>

#include "gpu_worker/ops/attention/cuda/block_choice_kernels.h"
#include "gpu_worker/ops/attention/cuda/block_choice_units.cuh"
#include "gpu_worker/ops/cuda/warpgroup_mma.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kBoxRows = 64;   // of queries; the last may stay empty
constexpr int kTileGroups = kHopperChoiceKeys;
constexpr int kTileBlocks = kTileGroups / kBlockGroups;
constexpr int kStages = 4;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kBoxBytes = kBoxRows * 128;
constexpr int kQueryBytes = kConsumers * kBoxBytes;
constexpr int kKeyBytes = kTileGroups * 128;
constexpr int kStageBytes = kQueryBytes + kKeyBytes;
constexpr int kBarriers = kStages * kStageBytes;
constexpr int kAlignment = 1024;
constexpr int kSharedBytes = kBarriers + 8 * 2 * kStages + kAlignment;

struct WeightsParams {
  float* weights;
  int32_t num_kv_heads;
  int32_t group;
  int32_t head_dim;
  int32_t first_unit;
  int32_t num_units;
  int32_t num_blocks;
  int32_t units_of_box;
  int32_t num_tiles;  // of queries
  float scale_log2;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kColumns = 64;          // of a stage: rows of 128 bytes, swizzled
constexpr int kGroupBytes = 8 * 128;  // of rows that are swizzled together

// A block's part of the product.
struct Part {
  int kv_head;
  int first_unit;   // of the slice
  int first_block;  // of keys
  int num_steps;    // of 64 columns
};

struct Stages {
  uint32_t base;

  __device__ uint32_t queries(int stage, int box) const {
    return base + stage * kStageBytes + box * kBoxBytes;
  }
  __device__ uint32_t keys(int stage) const { return base + stage * kStageBytes + kQueryBytes; }
  __device__ uint32_t full(int stage) const { return base + kBarriers + 8 * stage; }
  __device__ uint32_t free(int stage) const { return base + kBarriers + 8 * (kStages + stage); }
};

// One thread's work.
__device__ void Produce(const HopperChoiceMaps& maps, const WeightsParams& params,
                        const Stages& stages, const Part& part) {
  const int chunks = params.head_dim / kColumns;
  const uint32_t box_bytes =
      static_cast<uint32_t>(params.units_of_box * kUnitGroups * params.group * 128);
  for (int step = 0; step < part.num_steps; ++step) {
    const int stage = step % kStages;
    WaitBarrier(stages.free(stage), (step / kStages & 1) ^ 1);
    ArriveExpecting(stages.full(stage), kConsumers * box_bytes + kKeyBytes);
    for (int box = 0; box < kConsumers; ++box) {
      CopyTile(maps.queries, stages.queries(stage, box), stages.full(stage),
               step % chunks * kColumns, part.kv_head * params.group,
               kGroupTokens - 1 - step / chunks,
               (part.first_unit + box * params.units_of_box) * kUnitGroups);
    }
    CopyTile(maps.keys, stages.keys(stage), stages.full(stage), step * kColumns,
             part.first_block * kBlockGroups, part.kv_head);
  }
}

// A consumer warpgroup. Lane i of a warp has rows i / 4 and i / 4 + 8 of its 16, and of every 8
// columns 2 (i % 4) and the next. Row r of a thread is in elements with bit 1 equal to r.
class Consumer {
 public:
  __device__ Consumer(const WeightsParams& params, const Stages& stages, const Part& part,
                      int index)
      : params_(params), stages_(stages), part_(part), index_(index) {}

  __device__ void Run() {
    for (int step = 0; step < part_.num_steps; ++step) {
      const int stage = step % kStages;
      WaitBarrier(stages_.full(stage), step / kStages & 1);
      BeginProducts();
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k) {
        MultiplyShared(TileDescriptor(stages_.queries(stage, index_) + 32 * k, kGroupBytes, 16),
                       TileDescriptor(stages_.keys(stage) + 32 * k, kGroupBytes, 16),
                       step > 0 || k > 0, scores_);
      }
      CommitProducts();
      WaitProducts<1>();
      // Those of the step before are done.
      if (step > 0 && threadIdx.x % 32 == 0) Arrive(stages_.free((step - 1) % kStages));
    }
    WaitProducts<0>();
    KeepOrder(scores_);
    Store();
  }

 private:
  __device__ void Store() const {
    const int first_row =
        static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 8 * half;
      const int of_box = row / params_.group;  // group of queries
      const int unit = part_.first_unit + index_ * params_.units_of_box + of_box / kUnitGroups;
      const int g = of_box % kUnitGroups;
      const bool exists = of_box < params_.units_of_box * kUnitGroups && unit < params_.num_units;
      // Of this thread's first key.
      const int last = LastSeenGroup(params_.first_unit + unit, g) -
                       part_.first_block * kBlockGroups - 2 * (static_cast<int>(threadIdx.x) % 4);
      const int64_t pair = int64_t{unit} * (params_.num_kv_heads * params_.group) +
                           part_.kv_head * params_.group + row % params_.group;
      float* const weights =
          params_.weights + (pair * params_.num_blocks + part_.first_block) * kUnitGroups + g;
#pragma unroll
      for (int block = 0; block < kTileBlocks; ++block) {
        const float* const pair_of_scores = scores_ + 4 * block + 2 * half;
        const float of_block = WeightOf(pair_of_scores, last - block * kBlockGroups);
        if (threadIdx.x % 4 == 0 && exists && part_.first_block + block < params_.num_blocks) {
          weights[block * kUnitGroups] = of_block;
        }
      }
    }
  }
  // Of a block of keys, by four lanes; a lane sees its first `last + 1` keys.
  __device__ float WeightOf(const float* scores, int last) const {
    float values[2];
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[i] = i <= last ? scores[i] * params_.scale_log2 : -INFINITY;
      largest = fmaxf(largest, values[i]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // What is no number stays none, so that nothing is left out for it.
      if (values[i] > -INFINITY || isnan(values[i])) sum += Exp2(values[i] - largest);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return largest + __log2f(sum);
  }

  const WeightsParams& params_;
  const Stages& stages_;
  const Part& part_;
  const int index_;
  float scores_[kTileGroups / 2];
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// blockIdx.x: tile of queries, then of keys: those that run together read the same keys.
// blockIdx.y: KV head.
__global__ void __launch_bounds__(kThreads, 1)
    HopperBlockWeightsKernel(const __grid_constant__ HopperChoiceMaps maps,
                             const __grid_constant__ WeightsParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte dynamic_shared[];
  const Stages stages{(SharedAddress(dynamic_shared) + kAlignment - 1) / kAlignment * kAlignment};
  const int units_of_tile = kConsumers * params.units_of_box;
  const Part part = {.kv_head = static_cast<int>(blockIdx.y),
                     .first_unit = static_cast<int>(blockIdx.x) % params.num_tiles * units_of_tile,
                     .first_block = static_cast<int>(blockIdx.x) / params.num_tiles * kTileBlocks,
                     .num_steps = kGroupTokens * params.head_dim / kColumns};
  const int last_unit = min(part.first_unit + units_of_tile, params.num_units) - 1;
  if (part.first_block >= BlocksOfUnit(params.first_unit + last_unit)) return;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(stages.full(stage), 1);
      InitBarrier(stages.free(stage), 4 * kConsumers);
    }
    PublishBarriers();
  }
  __syncthreads();
  // As a value that the compiler knows to be the same in a whole warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) Produce(maps, params, stages, part);
  } else {
    TakeRegisters<240>();
    Consumer(params, stages, part, warpgroup - 1).Run();
  }
#endif
}

}  // namespace

cudaError_t LaunchHopperBlockWeights(const ChoiceLaunch& launch, const HopperChoiceMaps& maps,
                                     cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      &HopperBlockWeightsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int units_of_box = HopperChoiceUnits(launch.group);
  const int units_of_tile = kConsumers * units_of_box;
  const int tiles = (launch.num_units + units_of_tile - 1) / units_of_tile;
  const WeightsParams params = {.weights = launch.weights,
                                .num_kv_heads = launch.num_kv_heads,
                                .group = launch.group,
                                .head_dim = launch.head_dim,
                                .first_unit = launch.first_unit,
                                .num_units = launch.num_units,
                                .num_blocks = launch.num_blocks,
                                .units_of_box = units_of_box,
                                .num_tiles = tiles,
                                .scale_log2 = launch.scale_log2};
  const int64_t of_keys = (int64_t{launch.num_blocks} + kTileBlocks - 1) / kTileBlocks;
  const dim3 grid(static_cast<unsigned>(tiles * of_keys),
                  static_cast<unsigned>(launch.num_kv_heads));
  HopperBlockWeightsKernel<<<grid, kThreads, kSharedBytes, stream>>>(maps, params);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
