// What one warp knows of its tiles: running maximum, sum and weighted values of up to 8 query
// heads, in registers, and how it takes in a tile. Scores are in units of log2, so weights are 2^x.
// A state's kDefers says whether a warp leaves its results of a part to the others and goes on,
// which takes two places for the results of all heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpu_worker/ops/attention/cuda/decode_attention_plan.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {

// Results of the block's warps, in shared memory: those of some query heads at a time.
template <int kHeadDim>
struct alignas(16) WarpResults {
  static constexpr int32_t kHeads = 512 / kHeadDim;  // of a section
  static constexpr int32_t kStride = kHeadDim + 4;   // so that the lanes of a warp meet all banks

  float acc[kDecodeWarps][kHeads][kStride];
  float max[kDecodeWarps][kDecodeGroup];
  float sum[kDecodeWarps][kDecodeGroup];

  __device__ float Max(int32_t q) const {
    float result = max[0][q];
    for (int32_t w = 1; w < kDecodeWarps; ++w) result = fmaxf(result, max[w][q]);
    return result;
  }
};

// `max` as something to subtract from scores: any number where there are no scores.
__device__ inline float ScoreBase(float max) { return max == -INFINITY ? 0.0f : max; }

// The slice's query heads of those that share the part's KV head: [slice.count][head_dim].
__device__ inline const __nv_bfloat16* Queries(const DecodeLaunch& launch, const DecodePart& part,
                                               int32_t head_dim) {
  return reinterpret_cast<const __nv_bfloat16*>(launch.queries) +
         part.sequence * launch.query_stride +
         (int64_t{part.head} * launch.slice.group + launch.slice.first) * head_dim;
}

// bf16 KV, on tensor cores: keys times the queries, then values, transposed, times the weights. A
// tile in shared memory: 16 keys, then 16 values, of head_dim elements each; the 16-byte pieces of
// row i lie at their index xor i % 8, so that 8 rows of a matrix meet all banks.
template <int kHeadDim>
class TensorState {
 public:
  static constexpr int kElementBytes = 2;
  static constexpr bool kDefers = false;
  static constexpr int kRowBytes = kElementBytes * kHeadDim;
  static constexpr int kTileBytes = 2 * kTileTokens * kRowBytes;

  // Offset of a 16-byte piece of a key in a tile.
  __device__ static uint32_t PieceOffset(int32_t row, int32_t piece) {
    return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 7)) << 4));
  }

  // Begins to load the queries of the part that Begin will start.
  __device__ void Prefetch(const DecodeLaunch& launch, const DecodePart& part) {
    const int32_t lane = Lane(), q = lane / 4;
    const __nv_bfloat16* query =
        Queries(launch, part, kHeadDim) + static_cast<int64_t>(q) * kHeadDim + 2 * (lane % 4);
    for (int i = 0; i < kSteps; ++i) {
      for (int half = 0; half < 2; ++half) {
        next_queries_[i][half] = q < launch.slice.count
                                     ? *reinterpret_cast<const uint32_t*>(query + 16 * i + 8 * half)
                                     : 0u;
      }
    }
  }

  __device__ void Begin() {
    for (int i = 0; i < kSteps; ++i) {
      queries_[i][0] = next_queries_[i][0];
      queries_[i][1] = next_queries_[i][1];
      for (float& value : acc_[i]) value = 0;
    }
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
  }

  // Takes in a tile; bit i of `mask` says that token i is there.
  __device__ void Attend(uint32_t tile, uint32_t mask, float scale_log2) {
    float scores[4];  // tokens lane / 4 and + 8, query heads 2 (lane % 4) and the next
    Score(tile, scores);
    const int32_t token = Lane() / 4;
    for (int i = 0; i < 4; ++i) {
      const bool is_there = (mask >> (token + 8 * (i / 2)) & 1) != 0;
      scores[i] = is_there ? scores[i] * scale_log2 : -INFINITY;
    }
    RaiseMax(scores);
    const float base[2] = {ScoreBase(max_[0]), ScoreBase(max_[1])};
    float weights[4];
    for (int i = 0; i < 4; ++i) {
      weights[i] = Exp2(scores[i] - base[i % 2]);
      sum_[i % 2] += weights[i];
    }
    AddValues(tile + kTileTokens * kRowBytes, Split(weights));
  }

  // Tells the other warps maximum and sum.
  __device__ void PublishMax(WarpResults<kHeadDim>& results, int32_t warp) {
    for (float& sum : sum_) {
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    }
    if (Lane() < 4) {
      for (int i = 0; i < 2; ++i) {
        results.max[warp][2 * Lane() + i] = max_[i];
        results.sum[warp][2 * Lane() + i] = sum_[i];
      }
    }
  }

  // Writes the values of a section's query heads, relative to the warp's own maximum.
  __device__ void PublishValues(int32_t section, WarpResults<kHeadDim>& results,
                                int32_t warp) const {
    constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads;
    const int32_t q = 2 * (Lane() % 4) - section * kHeads, row = Lane() / 4;
    if (q < 0 || q >= kHeads) return;
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < 4; ++i) {
        results.acc[warp][q + i % 2][16 * step + row + 8 * (i / 2)] = acc_[step][i];
      }
    }
  }

 private:
  static constexpr int kSteps = kHeadDim / 16;

  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x % 32); }

  // Raises the maximum to that of a tile: its scores as a product leaves them, tokens lane / 4 and
  // + 8, query heads 2 (lane % 4) and the next.
  __device__ void RaiseMax(const float (&scores)[4]) {
    float raised[2];
    for (int i = 0; i < 2; ++i) {
      raised[i] = fmaxf(scores[i], scores[i + 2]);
      for (int step = 4; step < 32; step *= 2) {
        raised[i] = fmaxf(raised[i], __shfl_xor_sync(~0u, raised[i], step));
      }
      raised[i] = fmaxf(raised[i], max_[i]);
    }
    if (!__any_sync(~0u, raised[0] > max_[0] || raised[1] > max_[1])) return;
    for (int i = 0; i < 2; ++i) {
      const float weight = Exp2(max_[i] - ScoreBase(raised[i]));
      max_[i] = raised[i];
      sum_[i] *= weight;
      for (auto& values : acc_) {
        values[i] *= weight;
        values[i + 2] *= weight;
      }
    }
  }

  // Weights of a tile, laid out like its scores, to be multiplied with its values: each as two bf16
  // numbers, so that they are as good as f32.
  struct SplitWeights {
    uint32_t high[2], low[2];
  };
  __device__ static SplitWeights Split(const float (&weights)[4]) {
    float high[4], low[4];
    for (int i = 0; i < 4; ++i) {
      high[i] = __bfloat162float(__float2bfloat16_rn(weights[i]));
      low[i] = weights[i] - high[i];
    }
    return {
        {TransposeMatrix(PackBf16(high[0], high[1])), TransposeMatrix(PackBf16(high[2], high[3]))},
        {TransposeMatrix(PackBf16(low[0], low[1])), TransposeMatrix(PackBf16(low[2], low[3]))}};
  }
  // Adds dimensions of the values times the weights to acc_[step].
  __device__ void AddWeighted(int step, const uint32_t (&values)[4], const SplitWeights& weights) {
    MultiplyAdd(values, weights.high[0], weights.high[1], acc_[step]);
    MultiplyAdd(values, weights.low[0], weights.low[1], acc_[step]);
  }

  __device__ void Score(uint32_t keys, float (&scores)[4]) const {
    const int32_t lane = Lane();
    const int32_t row = lane % 16, piece = lane / 16;
    float odd[4] = {};  // two sums, so that a product need not wait for the last one
    for (float& score : scores) score = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t matrices[4];
      LoadMatrices(keys + PieceOffset(row, 2 * i + piece), matrices);
      MultiplyAdd(matrices, queries_[i][0], queries_[i][1], i % 2 == 0 ? scores : odd);
    }
    for (int i = 0; i < 4; ++i) scores[i] += odd[i];
  }

  __device__ void AddValues(uint32_t values, const SplitWeights& weights) {
    const int32_t lane = Lane();
    const int32_t row = lane % 8 + 8 * (lane / 16), piece = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t matrices[4];
      LoadMatricesTransposed(values + PieceOffset(row, 2 * i + piece), matrices);
      AddWeighted(i, matrices, weights);
    }
  }

  uint32_t queries_[kSteps][2];
  uint32_t next_queries_[kSteps][2];
  float acc_[kSteps][4];   // 16 dimensions, of which a lane has two; query heads as the scores'
  float max_[2], sum_[2];  // max_ the same in all lanes of a column, sum_ the lane's own share
};

// f32 KV, straight from global memory: a token at a time, each lane a few dimensions. For tests and
// comparisons: not fast.
template <int kHeadDim>
class PlainState {
 public:
  static constexpr int kElementBytes = 4;
  static constexpr bool kDefers = false;
  static constexpr int kTileBytes = 16;  // nothing is copied

  __device__ void Begin(const DecodeLaunch& launch, const DecodePart& part) {
    const __nv_bfloat16* queries = Queries(launch, part, kHeadDim) + kDims * Lane();
    for (int q = 0; q < kDecodeGroup; ++q) {
      for (int i = 0; i < kDims; ++i) {
        queries_[q][i] =
            q < launch.slice.count ? __bfloat162float(queries[q * kHeadDim + i]) : 0.0f;
        acc_[q][i] = 0;
      }
      max_[q] = -INFINITY;
      sum_[q] = 0;
    }
  }

  __device__ void Attend(const float* key, const float* value, float scale_log2) {
    for (int q = 0; q < kDecodeGroup; ++q) {
      float score = 0;
      for (int i = 0; i < kDims; ++i) score += queries_[q][i] * key[kDims * Lane() + i];
      for (int step = 1; step < 32; step *= 2) score += __shfl_xor_sync(~0u, score, step);
      score *= scale_log2;
      const float raised = fmaxf(max_[q], score);
      const float kept = Exp2(max_[q] - ScoreBase(raised));
      const float weight = Exp2(score - ScoreBase(raised));
      max_[q] = raised;
      sum_[q] = sum_[q] * kept + weight;
      for (int i = 0; i < kDims; ++i) {
        acc_[q][i] = acc_[q][i] * kept + weight * value[kDims * Lane() + i];
      }
    }
  }

  __device__ void PublishMax(WarpResults<kHeadDim>& results, int32_t warp) const {
    for (int q = 0; q < kDecodeGroup; ++q) {
      if (Lane() != q) continue;
      results.max[warp][q] = max_[q];
      results.sum[warp][q] = sum_[q];
    }
  }
  __device__ void PublishValues(int32_t section, WarpResults<kHeadDim>& results,
                                int32_t warp) const {
    constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads;
    for (int q = 0; q < kDecodeGroup; ++q) {
      if (q / kHeads != section) continue;
      for (int i = 0; i < kDims; ++i) {
        results.acc[warp][q % kHeads][kDims * Lane() + i] = acc_[q][i];
      }
    }
  }

 private:
  static constexpr int kDims = kHeadDim / 32;

  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x % 32); }

  float queries_[kDecodeGroup][kDims];
  float acc_[kDecodeGroup][kDims];
  float max_[kDecodeGroup], sum_[kDecodeGroup];
};

}  // namespace retroinfer::cuda
