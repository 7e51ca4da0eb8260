// Queries of a warp against tiles of keys and values in shared memory, by matrix products of single
// warps and a running softmax (FlashAttention-2, Dao 2023).
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "gpu_worker/ops/attention/cuda/prefill_attention_window.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {

inline constexpr int kTileKeys = 64;
// Tiles of 16 queries that a warp has: what registers have room for.
template <int kHeadDim>
constexpr int kRowTiles = kHeadDim > 128 ? 1 : 2;
// A block of warps, each with queries of its own.
inline constexpr int kQueryWarps = 4;
inline constexpr int kQueryThreads = 32 * kQueryWarps;
template <int kHeadDim>
constexpr int kTileQueries = 16 * kRowTiles<kHeadDim>* kQueryWarps;

// Offset of 8 elements of a tile of rows of head_dim bf16 numbers. Neighbouring rows have them in
// different banks.
template <int kHeadDim>
__device__ constexpr uint32_t TileOffset(int row, int column) {
  return 2 * static_cast<uint32_t>(row * kHeadDim + 8 * (column / 8 ^ row % 8));
}

// Lane i has queries i / 4 and i / 4 + 8 of each row tile, and of every 8 keys, or numbers of a
// head, 2 (i % 4) and the next. kMayBeEmpty: a query may see no key of a tile.
template <int kHeadDim, bool kMayBeEmpty>
class QueryTile {
 public:
  static constexpr int kTiles = kRowTiles<kHeadDim>;
  using Scores = float[kTiles][kTileKeys / 8][4];

  // `queries`: a tile in shared memory, of which the warp's rows begin with `first_row`.
  __device__ QueryTile(uint32_t queries, int first_row, float scale_log2)
      : queries_(queries),
        first_row_(first_row),
        lane_(static_cast<int>(threadIdx.x % 32)),
        scale_log2_(scale_log2) {
#pragma unroll
    for (auto& of_tile : largest_) of_tile[0] = of_tile[1] = -INFINITY;
  }

  // Products of the queries and a tile of keys, without the scale.
  __device__ void MultiplyKeys(uint32_t keys, Scores& scores) const {
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        LoadMatrices(queries_ + TileOffset<kHeadDim>(first_row_ + 16 * tile + lane_ % 16,
                                                     k + lane_ / 16 * 8),
                     a[tile]);
      }
#pragma unroll
      for (int n = 0; n < kTileKeys; n += 16) {
        uint32_t b[4];
        LoadMatrices(
            keys + TileOffset<kHeadDim>(n + lane_ / 16 * 8 + lane_ % 8, k + lane_ / 8 % 2 * 8), b);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          MultiplyAdd(a[tile], b[0], b[1], scores[tile][n / 8]);
          MultiplyAdd(a[tile], b[2], b[3], scores[tile][n / 8 + 1]);
        }
      }
    }
  }

  // Adds the values of a tile whose keys have these scores; -inf: the query does not see the key.
  // The scores are weights then.
  __device__ void Add(uint32_t values, Scores& scores) {
    UpdateSoftmax(scores);
    MultiplyValues(values, scores);
  }

  // Of query i / 4 + 8 half of a row tile: its largest score, the lane's share of its sum of
  // weights, and two numbers of the weighted values for every 8 of the head.
  __device__ float largest(int tile, int half) const { return largest_[tile][half]; }
  __device__ float sum(int tile, int half) const { return sum_[tile][half]; }
  __device__ const float* acc(int tile, int half, int n) const { return acc_[tile][n] + 2 * half; }

 private:
  // Turns scores into weights, and scales what was summed so far.
  __device__ void UpdateSoftmax(Scores& scores) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = largest_[tile][half];
#pragma unroll
        for (int n = 0; n < kTileKeys / 8; ++n) {
          largest = fmaxf(largest, fmaxf(scores[tile][n][2 * half], scores[tile][n][2 * half + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const float anchor = Anchor<kMayBeEmpty>(largest);
        const float offset = anchor * scale_log2_;
        // The difference first: a block that a query sees nothing of must keep sums as they are.
        const float keep = Exp2((largest_[tile][half] - anchor) * scale_log2_);
        largest_[tile][half] = largest;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[tile][n][i] = Exp2(fmaf(scores[tile][n][i], scale_log2_, -offset));
            total += scores[tile][n][i];
          }
        }
        sum_[tile][half] = sum_[tile][half] * keep + total;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          acc_[tile][n][2 * half] *= keep;
          acc_[tile][n][2 * half + 1] *= keep;
        }
      }
    }
  }

  // A product's results lie as the operands of the next do, but for the rounding.
  __device__ void MultiplyValues(uint32_t values, const Scores& weights) {
#pragma unroll
    for (int k = 0; k < kTileKeys; k += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = weights[tile][k / 8 + i / 2] + i % 2 * 2;
          a[tile][i] = PackBf16(pair[0], pair[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kHeadDim; n += 16) {
        uint32_t b[4];
        LoadMatricesTransposed(values + TileOffset<kHeadDim>(k + lane_ % 16, n + lane_ / 16 * 8),
                               b);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          MultiplyAdd(a[tile], b[0], b[1], acc_[tile][n / 8]);
          MultiplyAdd(a[tile], b[2], b[3], acc_[tile][n / 8 + 1]);
        }
      }
    }
  }

  const uint32_t queries_;
  const int first_row_;
  const int lane_;
  const float scale_log2_;
  float largest_[kTiles][2];
  float sum_[kTiles][2] = {};
  float acc_[kTiles][kHeadDim / 8][4] = {};
};

}  // namespace retroinfer::cuda
