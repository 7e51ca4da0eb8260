// What a block that samples a row works with: the row's logits or candidates gathered from it, and
// sums over them, all in fixed orders.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer::cuda::sampling {

inline constexpr int kSamplingThreads = 1024;
inline constexpr int kSamplingWarps = kSamplingThreads / 32;
inline constexpr int kMaxCandidates = 4096;
inline constexpr int kDigits = 7;  // digits above zero of three bits

// What the threads of a block exchange.
struct Shared {
  double sums[kSamplingWarps][kDigits];
  double totals[kDigits];
  uint32_t counts[kSamplingWarps];
  float maxima[kSamplingThreads];
  float candidate_logits[kMaxCandidates];  // in order of their ids
  int32_t candidate_tokens[kMaxCandidates];
  float top_logits[kMaxTopLogprobs];
  int32_t top_tokens[kMaxTopLogprobs];
  int32_t token;
};

// Larger for larger values; there are no NaNs and no negative zeros.
__device__ inline uint32_t KeyOf(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float ValueOf(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The row itself, or the candidates gathered from it. Token(i) ascends with i.
struct Entries {
  const float* logits;
  const int32_t* tokens;  // null: the index is the token
  int32_t size;

  __device__ int32_t Token(int32_t i) const { return tokens == nullptr ? i : tokens[i]; }
  // Each warp's share is contiguous, so that ids ascend from warp to warp.
  __device__ int32_t ShareOfWarp() const {
    return (size + kSamplingThreads - 1) / kSamplingThreads * 32;
  }
};

// Calls visit(i, valid) for every entry of the warp's share, 32 lanes at a time, all lanes.
template <typename Visit>
__device__ inline void ForShare(const Entries& entries, int warp, const Visit& visit) {
  const int32_t share = entries.ShareOfWarp();
  const int32_t begin = warp * share;
  for (int32_t at = begin; at < begin + share && at < entries.size; at += 32) {
    const int32_t i = at + static_cast<int32_t>(threadIdx.x) % 32;
    visit(i, i < entries.size);
  }
}

__device__ inline double WarpSum(double value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  return value;
}

// Every thread gets the sums over the block in `values`.
template <int kCount>
__device__ inline void BlockSums(Shared& shared, double (&values)[kCount]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // Readers of the sums before these are done.
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    const double sum = WarpSum(values[c]);
    if (lane == 0) shared.sums[warp][c] = sum;
  }
  __syncthreads();
  if (warp < kCount) {
    const double total = WarpSum(shared.sums[lane][warp]);
    if (lane == 0) shared.totals[warp] = total;
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kCount; ++c) values[c] = shared.totals[c];
}

__device__ inline double BlockSum(Shared& shared, double value) {
  double values[1] = {value};
  BlockSums(shared, values);
  return values[0];
}

// Calls visit(i, logit) for the thread's part of `size` logits, in ascending order. Many are under
// way at once: a block alone on its processor would else wait for each.
template <typename Visit>
__device__ inline void ForPart(const float* logits, int32_t size, const Visit& visit) {
  constexpr int kBatch = 16;
  for (int32_t begin = threadIdx.x; begin < size; begin += kBatch * kSamplingThreads) {
    float values[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t i = begin + b * kSamplingThreads;
      values[b] = i < size ? logits[i] : 0.0f;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t i = begin + b * kSamplingThreads;
      if (i < size) visit(i, values[b]);
    }
  }
}

// The sum over all entries of weight(logit), which is f32.
template <typename Weight>
__device__ inline double SumOf(Shared& shared, const Entries& entries, const Weight& weight) {
  float sum = 0;
  ForPart(entries.logits, entries.size, [&](int32_t, float logit) { sum += weight(logit); });
  return BlockSum(shared, sum);
}

}  // namespace retroinfer::cuda::sampling
