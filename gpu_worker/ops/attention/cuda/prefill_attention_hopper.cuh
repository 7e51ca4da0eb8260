// What the kernels of Hopper's prefill attention share: the tile of queries of a block, whose two
// warpgroups take 64 queries each, and the tiles of 128 keys and values that they pass.
#pragma once

#include <cuda_bf16.h>

#include "gpu_worker/ops/attention/cuda/prefill_attention_window.cuh"
#include "gpu_worker/ops/cuda/warpgroup_mma.cuh"

namespace retroinfer::cuda {

constexpr int kTileQueries = 128;
constexpr int kConsumers = 2;  // warpgroups, of 64 queries each
constexpr int kHopperThreads = 128 * (1 + kConsumers);
constexpr int kChunk = 64;              // columns of a swizzled row of 128 bytes
constexpr int kChunkBytes = 128 * 128;  // of a tile: 128 rows

struct HopperParams {
  __nv_bfloat16* out;
  int64_t out_stride;
  int32_t num_query_heads;
  int32_t group;
  int32_t num_queries;
  int32_t first_token;
  float scale_log2;
  PrefillWindow window;
  const float* sinks;
  // Of a kernel that passes chosen blocks.
  ChosenBlocks chosen;
  const int32_t* order;
};

// Launches a block of `shared_bytes` for each tile of queries of a head. Not early: what kernels
// read by __ldg must be there before they begin.
inline cudaError_t LaunchHopperKernel(void (*kernel)(HopperPrefillMaps, HopperParams),
                                      int shared_bytes, const PrefillLaunch& launch,
                                      const HopperPrefillMaps& maps, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const int32_t query_heads = launch.num_kv_heads * launch.group;
  const int64_t tiles = (int64_t{launch.num_queries} + kTileQueries - 1) / kTileQueries;
  const HopperParams params = {.out = reinterpret_cast<__nv_bfloat16*>(launch.out),
                               .out_stride = launch.out_stride,
                               .num_query_heads = query_heads,
                               .group = launch.group,
                               .num_queries = launch.num_queries,
                               .first_token = launch.first_token,
                               .scale_log2 = launch.scale_log2,
                               .window = launch.window,
                               .sinks = launch.sinks,
                               .chosen = launch.chosen,
                               .order = launch.order};
  kernel<<<static_cast<unsigned>(tiles * query_heads), kHopperThreads, shared_bytes, stream>>>(
      maps, params);
  return cudaGetLastError();
}

// Offsets in shared memory.
template <int kHeadDim, int kStages>
struct HopperLayout {
  static constexpr int kTileBytes = kHeadDim / kChunk * kChunkBytes;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kQueries + kTileBytes;
  static constexpr int kValues = kKeys + kStages * kTileBytes;
  static constexpr int kBarriers = kValues + kStages * kTileBytes;
  static constexpr int kBytes = kBarriers + 8 * (1 + 4 * kStages);
  static constexpr int kAlignment = 1024;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kTileKeys = 128;
constexpr int kGroupBytes = 8 * 128;  // of rows of a chunk that are swizzled together

// Addresses of a block's tiles and barriers.
template <int kHeadDim, int kStages>
struct HopperTiles {
  using At = HopperLayout<kHeadDim, kStages>;
  uint32_t base;

  __device__ uint32_t queries() const { return base + At::kQueries; }
  __device__ uint32_t keys(int stage) const { return base + At::kKeys + stage * At::kTileBytes; }
  __device__ uint32_t values(int stage) const {
    return base + At::kValues + stage * At::kTileBytes;
  }
  __device__ uint32_t queries_full() const { return base + At::kBarriers; }
  __device__ uint32_t keys_full(int stage) const { return Barrier(0, stage); }
  __device__ uint32_t keys_free(int stage) const { return Barrier(1, stage); }
  __device__ uint32_t values_full(int stage) const { return Barrier(2, stage); }
  __device__ uint32_t values_free(int stage) const { return Barrier(3, stage); }

 private:
  __device__ uint32_t Barrier(int kind, int stage) const {
    return base + At::kBarriers + 8 * (1 + kind * kStages + stage);
  }
};

// Copies [128 rows, head_dim] from row y on, chunk by chunk of columns.
template <int kHeadDim>
__device__ void CopyRows(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int x, int y,
                         int z) {
  ArriveExpecting(barrier, kHeadDim / kChunk * kChunkBytes);
#pragma unroll
  for (int chunk = 0; chunk < kHeadDim / kChunk; ++chunk) {
    CopyTile(map, shared + chunk * kChunkBytes, barrier, x + chunk * kChunk, y, z);
  }
}

// The softmax of the two rows that a thread shares with three others: lane i of a warp has rows
// i / 4 and i / 4 + 8, and of every 8 columns 2 (i % 4) and the next. Row r of a thread is in
// elements with bit 1 equal to r.
struct HopperSoftmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this thread's columns

  // Turns scores into weights; returns in `keep` what the sums so far have to be multiplied by.
  template <bool kWindowed>
  __device__ void Update(float (&scores)[64], float scale_log2, float (&keep)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float next = largest[row];
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
        next = fmaxf(next, fmaxf(scores[i + 2 * row], scores[i + 2 * row + 1]));
      }
      next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
      next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
      const float anchor = Anchor<kWindowed>(next);
      const float offset = anchor * scale_log2;
      // The difference first: a block that a query sees nothing of must keep sums as they are.
      keep[row] = Exp2((largest[row] - anchor) * scale_log2);
      largest[row] = next;
      float total = 0;
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = scores[i + 2 * row + j];
          score = Exp2(fmaf(score, scale_log2, -offset));
          total += score;
        }
      }
      sum[row] = sum[row] * keep[row] + total;
    }
  }
  __device__ float WholeSum(int row) const {
    float whole = sum[row];
    whole += __shfl_xor_sync(~0u, whole, 1);
    whole += __shfl_xor_sync(~0u, whole, 2);
    return whole;
  }
};

// The queries of a consumer warpgroup.
template <int kHeadDim, typename Tiles>
class HopperQueries {
 public:
  __device__ HopperQueries(const HopperParams& params, const Tiles& tiles, int first_query,
                           int index)
      : params_(params),
        tiles_(tiles),
        index_(index),
        first_query_(first_query + 64 * index_),
        row_(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4),
        column_(2 * (threadIdx.x % 4)) {}

 protected:
  static constexpr int kTurn = 1;  // and the next: barriers of the two warpgroups' turns
  static constexpr int kTurnThreads = 128 * kConsumers;
  static constexpr int kSteps = kHeadDim / 16;

  __device__ void IssueScores(int stage, float (&scores)[64]) {
    const uint32_t queries = tiles_.queries() + index_ * 64 * 128;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t offset = step / 4 * kChunkBytes + step % 4 * 32;
      MultiplyShared(TileDescriptor(queries + offset, kGroupBytes, 16),
                     TileDescriptor(tiles_.keys(stage) + offset, kGroupBytes, 16), step > 0,
                     scores);
    }
  }
  __device__ void IssueValues(int stage) {
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      const uint32_t values = tiles_.values(stage) + step * 2 * kGroupBytes;
      MultiplyRegisters(weights_ + 4 * step, TileDescriptor(values, kGroupBytes, kChunkBytes),
                        acc_);
    }
  }
  // Products' results lie as their operands do, but for the rounding.
  __device__ void PackWeights(const float (&scores)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) weights_[i] = PackBf16(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ void Release(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) Arrive(barrier);
  }
  __device__ void Store(int query_head) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float of_sink =
          WeightOfSink(params_.sinks, query_head, softmax_.largest[row] * params_.scale_log2);
      const float factor = 1.0f / (softmax_.WholeSum(row) + of_sink);
      const int query = first_query_ + row_ + 8 * row;
      if (query >= params_.num_queries) continue;
      __nv_bfloat16* out =
          params_.out + query * params_.out_stride + int64_t{query_head} * kHeadDim + column_;
#pragma unroll
      for (int i = 2 * row; i < kHeadDim / 2; i += 4) {
        *reinterpret_cast<uint32_t*>(out + i / 4 * 8) =
            PackBf16(acc_[i] * factor, acc_[i + 1] * factor);
      }
    }
  }

  const HopperParams& params_;
  const Tiles& tiles_;
  const int index_;
  const int first_query_;
  const int row_;     // of this thread's first row in the warpgroup's 64
  const int column_;  // of its first column in 8
  HopperSoftmax softmax_;
  float acc_[kHeadDim / 2] = {};
  uint32_t weights_[32];
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace retroinfer::cuda
