// The state of decode_attention_state.cuh for KV in eight bits (kEightBitTokens). Elements become
// bf16 on the way from shared memory to the tensor cores. Scales stay out of the products: a key's
// is multiplied with its scores, a value's with its weights.
//
// A tile in shared memory: 16 keys, then 16 values, of head_dim bytes each, their 16-byte pieces
// moved so that 8 rows of a piece meet all banks. A piece is 16 elements, one step of a product,
// and what loads 16-bit elements loads two of it as one:
// * Keys. Lane i gets elements 4 (i % 4) to + 3 of row i / 4, but a product wants columns
//   2 (i % 4), the next, and these + 8. Columns are summed over, so any order of them will do, as
//   long as queries have the same.
// * Values. Transposed, lane i gets elements 2 (i / 4) and the next of tokens 2 (i % 4) and the
//   next. A product's row i / 4 becomes the first of the two dimensions, row i / 4 + 8 the second.
#pragma once

#include "gpu_worker/ops/attention/cuda/decode_attention_state.cuh"
#include "gpu_worker/ops/cuda/eight_bit_vector.cuh"
#include "gpu_worker/ops/cuda/widen.cuh"

namespace retroinfer::cuda {

template <int kHeadDim>
class EightBitState : public TensorSums<kHeadDim> {
 public:
  static constexpr int kRowBytes = kHeadDim;
  static constexpr int kTileBytes = 2 * kTileTokens * kRowBytes;

  // Offset of a 16-byte piece of a key in a tile. Rows of 64 bytes take turns in the banks.
  __device__ static uint32_t PieceOffset(int32_t row, int32_t piece) {
    static_assert(kRowBytes % 128 == 0 || kRowBytes == 64);
    const int32_t turn = kRowBytes != 64 ? row & 7 : row >> 1 & 3;
    return static_cast<uint32_t>(row * kRowBytes + ((piece ^ turn) << 4));
  }

  // Begins to load the queries of the part that Begin will start.
  __device__ void Prefetch(const DecodeLaunch& launch, const DecodePart& part) {
    const int32_t lane = Lane(), q = lane / 4;
    const __nv_bfloat16* query =
        Queries(launch, part, kHeadDim) + static_cast<int64_t>(q) * kHeadDim + 4 * (lane % 4);
    for (int i = 0; i < kSteps; ++i) {
      for (int half = 0; half < 2; ++half) {
        next_queries_[i][half] = q < launch.slice.count
                                     ? *reinterpret_cast<const uint32_t*>(query + 16 * i + 2 * half)
                                     : 0u;
      }
    }
  }

  // Takes in a tile; bit i of `mask` says that token i is there. Those that are not are zeros.
  __device__ void Attend(uint32_t tile, uint32_t mask, float scale_log2) {
    // Lane i has the scale of key i, or of value i - 16: their rows follow each other.
    const float scale = ScaleOfCode(CodeOfFirst(LoadShared8(tile + PieceOffset(Lane(), 0))));
    const int32_t token = Lane() / 4;
    float scores[4];  // tokens `token` and + 8, query heads 2 (lane % 4) and the next
    Score(tile, scores);
    for (int i = 0; i < 4; ++i) {
      const int32_t row = token + 8 * (i / 2);
      const float key_scale = __shfl_sync(~0u, scale, row) * scale_log2;
      scores[i] = (mask >> row & 1) != 0 ? scores[i] * key_scale : -INFINITY;
    }
    Sums::RaiseMax(scores);
    const float base[2] = {ScoreBase(max_[0]), ScoreBase(max_[1])};
    float weights[4];
    for (int i = 0; i < 4; ++i) {
      const float weight = Exp2(scores[i] - base[i % 2]);
      sum_[i % 2] += weight;
      weights[i] = weight * __shfl_sync(~0u, scale, kTileTokens + token + 8 * (i / 2));
    }
    AddValues(tile + kTileTokens * kRowBytes, Sums::Split(weights));
  }

  // Writes the values of a section's query heads, relative to the warp's own maximum.
  __device__ void PublishValues(int32_t section, WarpResults<kHeadDim>& results,
                                int32_t warp) const {
    constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads;
    const int32_t q = 2 * (Lane() % 4) - section * kHeads, pair = Lane() / 4;
    if (q < 0 || q >= kHeads) return;
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<float2*>(&results.acc[warp][q + i][16 * step + 2 * pair]) = {
            acc_[step][i], acc_[step][i + 2]};
      }
    }
  }

 private:
  using Sums = TensorSums<kHeadDim>;
  using Sums::acc_;
  using Sums::kSteps;
  using Sums::Lane;
  using Sums::max_;
  using Sums::next_queries_;
  using Sums::queries_;
  using Sums::sum_;

  // Two bytes of a word as bf16.
  template <int kLow, int kHigh>
  __device__ static uint32_t Widen(uint32_t word) {
    const __nv_bfloat162 pair = WidenBytes<kLow, kHigh>(word);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  // Words: rows 0 to 7 and 8 to 15 of piece 2 i, then of piece 2 i + 1.
  __device__ static uint32_t WordsOffset(int i) {
    return PieceOffset(Lane() % 16, 2 * i + Lane() / 16);
  }

  __device__ void Score(uint32_t keys, float (&scores)[4]) const {
    const int32_t column = Lane() % 4;
    const uint32_t counts = column == 0 ? kCountsOfWord0 : column == 1 ? kCountsOfWord1 : ~0u;
    float odd[4] = {};  // two sums, so that a product need not wait for the last one
    for (float& score : scores) score = 0;
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      uint32_t words[4];
      LoadMatrices(keys + WordsOffset(i), words);
      if (i == 0) {
        words[0] &= counts;
        words[1] &= counts;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t first = words[2 * half], second = words[2 * half + 1];
        const uint32_t matrices[4] = {Widen<0, 1>(first), Widen<0, 1>(second), Widen<2, 3>(first),
                                      Widen<2, 3>(second)};
        const uint32_t(&query)[2] = queries_[2 * i + half];
        MultiplyAdd(matrices, query[0], query[1], half == 0 ? scores : odd);
      }
    }
    for (int i = 0; i < 4; ++i) scores[i] += odd[i];
  }

  __device__ void AddValues(uint32_t values, const typename Sums::SplitWeights& weights) {
    const uint32_t counts = Lane() / 4 < kExponentBits / 2 ? kCountsOfWord0 : ~0u;
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      uint32_t words[4];
      LoadMatricesTransposed(values + WordsOffset(i), words);
      if (i == 0) {
        words[0] &= counts;
        words[1] &= counts;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t first = words[2 * half], second = words[2 * half + 1];
        const uint32_t matrices[4] = {Widen<0, 2>(first), Widen<1, 3>(first), Widen<0, 2>(second),
                                      Widen<1, 3>(second)};
        Sums::AddWeighted(2 * i + half, matrices, weights);
      }
    }
  }
};

}  // namespace retroinfer::cuda
