// The first kernel of sampling: prepares logits and takes sums of the parts of each row, which the
// second one merges.
#pragma once

#include <cfloat>
#include <cstdint>

#include "gpu_worker/ops/cuda/sampling_entries.cuh"
#include "gpu_worker/ops/sampling.h"

namespace retroinfer::cuda::sampling {

inline constexpr int kPartThreads = 512;

// What is known of a part of a row.
struct PartSums {
  double sum;       // of exp(logit - max)
  double weighted;  // of exp((logit - max) / temperature)
  float max;
  int32_t token;  // the lowest with that logit; the vocabulary's size if all are minus infinity
};

struct SamplingLaunch {
  std::byte* logits;
  int64_t logits_stride;
  int32_t vocab;
  const SamplingRow* rows;
  const int32_t* banned;
  const uint32_t* const* occurrences;  // or null
  int32_t* tokens;
  float* logprobs;
  int32_t* top_tokens;
  float* top_logprobs;
  PartSums* parts;  // [rows, num_parts]
  int32_t num_parts;
};

// The larger of two logits, the lower token of equal ones.
__device__ inline void KeepLargest(float logit, int32_t token, float& best, int32_t& best_token) {
  if (logit > best || (logit == best && token < best_token)) {
    best = logit;
    best_token = token;
  }
}
__device__ inline void KeepLargestOfWarp(float& best, int32_t& best_token) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(~0u, best, lanes);
    const int32_t other_token = __shfl_xor_sync(~0u, best_token, lanes);
    KeepLargest(other, other_token, best, best_token);
  }
}

// A logit after penalties: finite, or minus infinity.
__device__ inline float Penalized(float logit, uint32_t seen, const SamplingRow& row) {
  if (seen != 0) {
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    const uint32_t generated = seen & 0x7fffffffu;
    if (generated > 0) {
      logit -= row.frequency_penalty * static_cast<float>(generated) + row.presence_penalty;
    }
  }
  return isnan(logit) ? -INFINITY : fminf(logit, FLT_MAX) + 0.0f;
}

// blockIdx.x: part; blockIdx.y: row. Applies bans and penalties in place; a thread keeps its logits
// in registers until the part's largest is known.
inline __global__ void __launch_bounds__(kPartThreads) PartsKernel(const SamplingLaunch launch) {
  constexpr int kEach = kSamplingPartSize / kPartThreads;
  constexpr int kPartWarps = kPartThreads / 32;
  static_assert(kPartWarps <= 32);
  __shared__ float maxima[kPartWarps];
  __shared__ int32_t tokens[kPartWarps];
  __shared__ double sums[2][kPartWarps];
  const int64_t i = blockIdx.y;
  const SamplingRow row = launch.rows[i];
  float* const logits = reinterpret_cast<float*>(launch.logits) + i * launch.logits_stride;
  const auto begin = static_cast<int32_t>(blockIdx.x * kSamplingPartSize);
  const auto end = static_cast<int32_t>(min(begin + kSamplingPartSize, int64_t{launch.vocab}));
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < min(row.num_banned, kMaxBanned)) {
    const int32_t token = launch.banned[i * kMaxBanned + thread];
    if (token >= begin && token < end) logits[token] = -INFINITY;
  }
  __syncthreads();
  const uint32_t* const occurrences =
      launch.occurrences == nullptr ? nullptr : launch.occurrences[i];
  float values[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    values[k] = token < end ? logits[token] : -INFINITY;
  }
  float max = -INFINITY;
  int32_t at = launch.vocab;  // So that a thread without a token never wins.
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    if (token >= end) continue;
    const uint32_t seen = occurrences == nullptr ? 0 : occurrences[token];
    const float logit = Penalized(values[k], seen, row);
    if (__float_as_uint(logit) != __float_as_uint(values[k])) logits[token] = logit;
    values[k] = logit;
    if (logit > -INFINITY) KeepLargest(logit, token, max, at);
  }
  const int warp = thread / 32, lane = thread % 32;
  KeepLargestOfWarp(max, at);
  if (lane == 0) {
    maxima[warp] = max;
    tokens[warp] = at;
  }
  __syncthreads();
  for (int w = 0; w < kPartWarps; ++w) KeepLargest(maxima[w], tokens[w], max, at);
  float sum = 0, weighted = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (values[k] == -INFINITY) continue;
    sum += expf(values[k] - max);
    if (row.temperature > 0) weighted += expf((values[k] - max) / row.temperature);
  }
  const double warp_sum = WarpSum(sum), warp_weighted = WarpSum(weighted);
  if (lane == 0) {
    sums[0][warp] = warp_sum;
    sums[1][warp] = warp_weighted;
  }
  __syncthreads();
  if (warp != 0) return;
  const double all = WarpSum(lane < kPartWarps ? sums[0][lane] : 0.0);
  const double all_weighted = WarpSum(lane < kPartWarps ? sums[1][lane] : 0.0);
  if (lane == 0) {
    launch.parts[i * launch.num_parts + blockIdx.x] = {all, all_weighted, max, at};
  }
}

// What the parts of a row say of it.
struct RowSums {
  float max = -INFINITY;
  int32_t token = 0;    // the lowest of the largest
  double sum = 0;       // of exp(logit - max)
  double weighted = 0;  // of exp((logit - max) / temperature)
};

// Every thread gets it.
__device__ inline RowSums MergeParts(const PartSums* parts, int32_t num_parts, int32_t vocab,
                                     float temperature) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  RowSums row{.token = vocab};
  for (int32_t p = lane; p < num_parts; p += 32) {
    KeepLargest(parts[p].max, parts[p].token, row.max, row.token);
  }
  KeepLargestOfWarp(row.max, row.token);
  for (int32_t p = lane; p < num_parts; p += 32) {
    const PartSums part = parts[p];
    if (part.max == -INFINITY) continue;
    row.sum += part.sum * expf(part.max - row.max);
    if (temperature > 0) row.weighted += part.weighted * expf((part.max - row.max) / temperature);
  }
  row.sum = WarpSum(row.sum);
  row.weighted = WarpSum(row.weighted);
  if (row.token >= vocab) row.token = 0;
  return row;
}

}  // namespace retroinfer::cuda::sampling
