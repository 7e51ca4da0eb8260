// Products of the codes of 16 tokens and a group's turned queries on tensor cores, and their sums
// over pages (who reads the codes: page_select.cu). Levels of codes are exact in f16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "common/kv/token_code.h"
#include "gpu_worker/ops/index/cuda/cluster_ranks.cuh"

namespace retroinfer::cuda {

constexpr int kTileTokens = 16;   // rows of a product
constexpr int kProductHeads = 8;  // columns of a product: heads of a slice of the group

// The codes of 16 tokens of one cluster, as a lane reads them: of tokens lane / 4 and lane / 4 + 8,
// quarter lane % 4. Tokens that are not there have codes of another one.
template <int kDim>
struct Tile {
  static constexpr int kWords = kDim / 64;  // of 16 channels
  int32_t candidate;                        // of the part; -1: no tile
  int32_t first;                            // token of the cluster
  uint32_t words[2][kWords];
  TokenCodeFactors factors[2];
};

// Pairs of channels in the order in which UnpackWord gives them: (0, 2), (4, 6), (8, 10), (12, 14),
// and the same of odd channels.
__device__ constexpr int ChannelOf(int pair, int which) {
  return pair / 4 + pair % 4 * 4 + 2 * which;
}

// The levels of 16 channels as pairs of f16, whose lower bytes are all zero.
__device__ inline void UnpackWord(uint32_t word, uint32_t (&pairs)[8]) {
  static_assert(kSmallLevel == 3 && kLargeLevel == 10);
  constexpr uint32_t kUpperBytes = 0x4942c2c9u;  // of 10, 3, -3 and -10, by code from the right
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const uint32_t codes = word >> (2 * odd) & 0x33333333u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t levels = __byte_perm(kUpperBytes, 0, codes >> (16 * half));
      pairs[4 * odd + 2 * half] = __byte_perm(levels, 0, 0x1404);
      pairs[4 * odd + 2 * half + 1] = __byte_perm(levels, 0, 0x3424);
    }
  }
}

// The turned queries of head lane / 4, for the channels that this lane reads of codes.
template <int kDim>
struct QueryPairs {
  uint32_t pairs[Tile<kDim>::kWords][8];

  __device__ explicit QueryPairs(const __half (&turned)[kProductHeads][kDim]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const __half* const query = turned[lane / 4] + lane % 4 * (kDim / 4);
#pragma unroll
    for (int w = 0; w < Tile<kDim>::kWords; ++w) {
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const __half2 pair =
            __halves2half2(query[16 * w + ChannelOf(p, 0)], query[16 * w + ChannelOf(p, 1)]);
        pairs[w][p] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }
};

// products[2 r + h]: of token lane / 4 + 8 r and head 2 (lane % 4) + h.
template <int kDim>
__device__ void Multiply(const Tile<kDim>& tile, const QueryPairs<kDim>& query,
                         float (&products)[4]) {
#pragma unroll
  for (int w = 0; w < Tile<kDim>::kWords; ++w) {
    uint32_t low[8], high[8];
    UnpackWord(tile.words[0][w], low);
    UnpackWord(tile.words[1][w], high);
#pragma unroll
    for (int p = 0; p < 8; p += 2) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};\n"
          : "+f"(products[0]), "+f"(products[1]), "+f"(products[2]), "+f"(products[3])
          : "r"(low[p]), "r"(high[p]), "r"(low[p + 1]), "r"(high[p + 1]), "r"(query.pairs[w][p]),
            "r"(query.pairs[w][p + 1]));
    }
  }
}

// Logarithms of the sums of exp() over a page; all lanes of a page get them. The numbers are of
// tokens and heads as products of Multiply; a page has kPerPage tokens, 16 or a divisor of 8.
template <int kPerPage>
__device__ void SumPages(float (&numbers)[4]) {
  static_assert(kPerPage == kTileTokens || 8 % kPerPage == 0);
  constexpr int kLanes = kPerPage < 8 ? kPerPage : 8;
  float max[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    max[i] = numbers[i];
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      max[i] = fmaxf(max[i], __shfl_xor_sync(kAllLanes, max[i], 4 * step));
    }
  }
  if constexpr (kPerPage == kTileTokens) {
    max[0] = max[2] = fmaxf(max[0], max[2]);
    max[1] = max[3] = fmaxf(max[1], max[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    numbers[i] = max[i] == -INFINITY ? 0 : Exp(numbers[i] - max[i]);
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      numbers[i] += __shfl_xor_sync(kAllLanes, numbers[i], 4 * step);
    }
  }
  if constexpr (kPerPage == kTileTokens) {
    numbers[0] = numbers[2] = numbers[0] + numbers[2];
    numbers[1] = numbers[3] = numbers[1] + numbers[3];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) numbers[i] = max[i] + __logf(numbers[i]);
}

}  // namespace retroinfer::cuda
