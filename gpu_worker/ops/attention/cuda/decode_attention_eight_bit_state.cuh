// The state of decode_attention_state.cuh for KV in eight bits (kEightBitTokens). Products are of
// integers: elements go from shared memory to the tensor cores as they are, and what they are
// multiplied with becomes two digits to the base 256, whose sums are exact.
//
// * A query is rounded to whole numbers of 15 bits and a sign, in units of a power of two that its
//   largest element chooses: what is at least a 128th of that element stays as it is.
// * A token's weight is multiplied by the scale of its value and rounded to 16 bits, in units of
//   the largest of the tile. Scales are powers of two, so their exponents are added to the scores.
//
// Columns 2 j and 2 j + 1 of a product are the digits of query head j, of which there are four in a
// set. So a lane holds both digits of one head: of head lane % 4.
//
// A tile in shared memory: 16 keys, then 16 values, of head_dim bytes each, their 16-byte pieces
// moved so that 8 rows of a piece meet all banks. Of a piece of values, lane i gets elements
// 2 (i / 4) and the next of tokens 2 (i % 4), the next, and these + 8: it is loaded transposed as
// if of 16-bit elements. A product's row i / 4 becomes the first of the two dimensions, row i / 4 +
// 8 the second; its columns are the tokens 2 (i % 4), + 8, the next, + 8, as the weights come.
#pragma once

#include "gpu_worker/ops/attention/cuda/decode_attention_state.cuh"
#include "gpu_worker/ops/cuda/eight_bit_vector.cuh"

namespace retroinfer::cuda {

// For up to `kHeads` query heads, 4 or 8.
template <int kHeadDim, int kHeads>
class EightBitState {
 public:
  static constexpr int kElementBytes = 1;
  static constexpr bool kDefers = kHeads <= WarpResults<kHeadDim>::kHeads;
  static constexpr int kRowBytes = kHeadDim;
  static constexpr int kTileBytes = 2 * kTileTokens * kRowBytes;

  // Offset of a 16-byte piece of a key in a tile. Rows of 64 bytes take turns in the banks.
  __device__ static uint32_t PieceOffset(int32_t row, int32_t piece) {
    static_assert(kRowBytes % 128 == 0 || kRowBytes == 64);
    const int32_t turn = kRowBytes != 64 ? row & 7 : row >> 1 & 3;
    return static_cast<uint32_t>(row * kRowBytes + ((piece ^ turn) << 4));
  }

  // Begins to load the queries of the part that Begin will start: lane i some of head i / 8.
  __device__ void Prefetch(const DecodeLaunch& launch, const DecodePart& part) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const int32_t q = kHeadsOfSet * set + Lane() / 8;
      const __nv_bfloat16* query =
          Queries(launch, part, kHeadDim) + static_cast<int64_t>(q) * kHeadDim + 4 * (Lane() % 4);
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) {
        next_queries_[set][i] =
            q < launch.slice.count
                ? *reinterpret_cast<const uint32_t*>(query + 16 * (i / 2) + 2 * (i % 2))
                : 0u;
      }
    }
  }

  __device__ void Begin() {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      RoundQueries(set);
      for (auto& values : acc_[set]) values[0] = values[1] = 0;
      base_[set] = -INFINITY;
      sum_[set] = 0;
    }
  }

  // Takes in a tile; bit i of `mask` says that token i is there. Those that are not are zeros.
  __device__ void Attend(uint32_t tile, uint32_t mask, float scale_log2) {
    // Lane i has the code of key i, or of value i - 16: their rows follow each other.
    const int32_t code = CodeOfFirst(LoadShared8(tile + PieceOffset(Lane(), 0)));
    const float scale = ScaleOfCode(code) * scale_log2;
    const bool is_nan = __any_sync(~0u, code == kNanCode && Lane() >= kTileTokens);
    const int32_t token = Lane() / 4;
    float key_scale[2];
    int32_t value_code[2];
    for (int i = 0; i < 2; ++i) {
      key_scale[i] = __shfl_sync(~0u, scale, token + 8 * i);
      value_code[i] = __shfl_sync(~0u, code, kTileTokens + token + 8 * i);
    }
    int32_t sums[kSets][4] = {};
    Score(tile, sums);
    const uint32_t there = mask >> token;
    uint32_t digits[kSets];
    float units[kSets];
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      float scores[2];
      for (int i = 0; i < 2; ++i) {
        const float product = Joined(sums[set][2 * i], sums[set][2 * i + 1]);
        const float score =
            fmaf(product, key_scale[i] * query_scale_[set], static_cast<float>(value_code[i]));
        scores[i] = (there >> 8 * i & 1) != 0 ? score : -INFINITY;
      }
      float max = fmaxf(scores[0], scores[1]);
      for (int step = 4; step < 32; step *= 2) {
        max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
      }
      RaiseBase(set, max);
      const float of_tile = Exp2(max - ScoreBase(base_[set]));
      float weights[2], share = 0;
      for (int i = 0; i < 2; ++i) {
        weights[i] = Exp2(scores[i] - ScoreBase(max));
        share = fmaf(weights[i], InverseScaleOfCode(value_code[i]), share);
      }
      sum_[set] = fmaf(of_tile, share, sum_[set]);
      digits[set] = Digits(weights);
      units[set] = is_nan ? NAN : of_tile * (1.0f / kMostOfWeight);
    }
    AddValues(tile + kTileTokens * kRowBytes, digits, units);
  }

  // Tells the other warps maximum and sum.
  __device__ void PublishMax(WarpResults<kHeadDim>& results, int32_t warp) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      float sum = sum_[set];
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (Lane() >= kHeadsOfSet) continue;
      const int32_t q = kHeadsOfSet * set + Lane();
      results.max[warp][q] = base_[set] + kLeastExponent;
      results.sum[warp][q] = sum;
    }
  }

  // Writes the values of a section's query heads, relative to what PublishMax tells.
  __device__ void PublishValues(int32_t section, WarpResults<kHeadDim>& results,
                                int32_t warp) const {
    constexpr int32_t kOfSection = WarpResults<kHeadDim>::kHeads;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const int32_t q = kHeadsOfSet * set + Lane() % 4 - section * kOfSection;
      if (q < 0 || q >= kOfSection) continue;
      for (int piece = 0; piece < kPieces; ++piece) {
        *reinterpret_cast<float2*>(&results.acc[warp][q][16 * piece + 2 * (Lane() / 4)]) = {
            acc_[set][piece][0], acc_[set][piece][1]};
      }
    }
  }

 private:
  static constexpr int kHeadsOfSet = 4, kSets = kHeads / kHeadsOfSet;
  static constexpr int kSteps = kHeadDim / 32, kPieces = kHeadDim / 16;
  static constexpr float kMostOfWeight = 65535;

  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x % 32); }

  // A number of the sums over its digits.
  __device__ static float Joined(int32_t high, int32_t low) {
    return static_cast<float>(high * 256 + low);
  }

  // Makes of next_queries_ the lane's digits: the higher one of head i / 8 if i / 4 is even.
  __device__ void RoundQueries(int set) {
    uint32_t pairs = 0;
    for (const uint32_t pair : next_queries_[set]) pairs = __vmaxu2(pairs, pair & 0x7fff7fff);
    uint32_t largest = max(pairs & 0xffff, pairs >> 16);  // bits of a bf16; NaN is the largest
    for (int step = 1; step < 4; step *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, step));
    }
    // The exponent of the next larger number: of 255 / 128 * 2^14 the higher digit would be 128.
    const uint32_t exponent = max((largest + 1) >> 7, kLeastQueryExponent);
    const float inverse = __uint_as_float((127 + 127 + kQueryBits - exponent) << 23);
    const float unit = exponent == 255 ? NAN : __uint_as_float((exponent - kQueryBits) << 23);
    query_scale_[set] = __shfl_sync(~0u, unit, 8 * (Lane() % 4));
    // A sum with this number has no fraction: its lowest bits are a whole number, rounded.
    constexpr float kRounder = 12582912;
    const bool is_high = Lane() / 4 % 2 == 0;
    const float rounder = is_high ? kRounder + 128 : kRounder;  // the lower digit has a sign
    const uint32_t selector = is_high ? 0x51 : 0x40;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      uint32_t numbers[4];
      for (int j = 0; j < 4; ++j) {
        const uint32_t pair = next_queries_[set][2 * i + j / 2];
        const uint32_t number = j % 2 == 0 ? pair << 16 : pair & 0xffff0000;
        numbers[j] = __float_as_uint(fmaf(__uint_as_float(number), inverse, rounder));
      }
      queries_[set][i] = __byte_perm(__byte_perm(numbers[0], numbers[1], selector),
                                     __byte_perm(numbers[2], numbers[3], selector), 0x5410);
    }
  }

  // Words: rows 0 to 7 and 8 to 15 of piece 2 i, then of piece 2 i + 1.
  __device__ static uint32_t WordsOffset(int i) {
    return PieceOffset(Lane() % 16, 2 * i + Lane() / 16);
  }

  __device__ void Score(uint32_t keys, int32_t (&sums)[kSets][4]) const {
    const int32_t column = Lane() % 4;
    const uint32_t counts = column == 0 ? kCountsOfWord0 : column == 1 ? kCountsOfWord1 : ~0u;
    int32_t odd[kSets][4] = {};  // two sums, so that a product need not wait for the last one
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t words[4];
      LoadMatrices(keys + WordsOffset(i), words);
      if (i == 0) {
        words[0] &= counts;
        words[1] &= counts;
      }
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        MultiplyAddBytes(words, queries_[set][2 * i], queries_[set][2 * i + 1],
                         i % 2 == 0 ? sums[set] : odd[set]);
      }
    }
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      for (int i = 0; i < 4; ++i) sums[set][i] += odd[set][i];
    }
  }

  // Keeps base_ near the largest score so far: sums may be some powers of two above 1, so that it
  // need not rise with every tile.
  __device__ void RaiseBase(int set, float max) {
    constexpr float kSlack = 16;
    if (!__any_sync(~0u, max > base_[set] + kSlack)) return;
    const float raised = fmaxf(base_[set], max);
    const float kept = Exp2(base_[set] - ScoreBase(raised));
    base_[set] = raised;
    sum_[set] *= kept;
    for (auto& values : acc_[set]) {
      values[0] *= kept;
      values[1] *= kept;
    }
  }

  // The digits of the weights of tokens lane / 4 and + 8, at most 1, as a product wants them.
  __device__ static uint32_t Digits(const float (&weights)[2]) {
    constexpr float kRounder = 8388608;
    const uint32_t first = __float_as_uint(fmaf(weights[0], kMostOfWeight, kRounder));
    const uint32_t second = __float_as_uint(fmaf(weights[1], kMostOfWeight, kRounder));
    // Of a head, higher digits are a column and lower ones the next, and two tokens an element.
    return TransposeMatrix(__byte_perm(first, second, 0x4051));
  }

  __device__ void AddValues(uint32_t values, const uint32_t (&digits)[kSets],
                            const float (&units)[kSets]) {
    const uint32_t counts = Lane() / 4 < kExponentBits / 2 ? kCountsOfWord0 : ~0u;
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      uint32_t words[4];
      LoadMatricesTransposed(values + WordsOffset(i), words);
      if (i == 0) {
        words[0] &= counts;
        words[1] &= counts;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t first = __byte_perm(words[2 * half], words[2 * half + 1], 0x6240);
        const uint32_t second = __byte_perm(words[2 * half], words[2 * half + 1], 0x7351);
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          int32_t sums[4];
          MultiplyBytes(first, second, digits[set], sums);
          float(&acc)[2] = acc_[set][2 * i + half];
          acc[0] = fmaf(Joined(sums[0], sums[1]), units[set], acc[0]);
          acc[1] = fmaf(Joined(sums[2], sums[3]), units[set], acc[1]);
        }
      }
    }
  }

  // A query's largest element is below 2^(kQueryBits + 1) units.
  static constexpr uint32_t kQueryBits = 14;
  static constexpr uint32_t kLeastQueryExponent = 32;  // so that no factor leaves the floats

  uint32_t queries_[kSets][2 * kSteps];
  uint32_t next_queries_[kSets][4 * kSteps];  // two bf16 numbers
  float query_scale_[kSets];
  // Scores, with codes instead of exponents of values, are told relative to base_.
  float base_[kSets],
      sum_[kSets];                // base_ is the same in all lanes of a head, sum_ the lane's share
  float acc_[kSets][kPieces][2];  // dimensions 16 piece + 2 (lane / 4) and the next
};

}  // namespace retroinfer::cuda
