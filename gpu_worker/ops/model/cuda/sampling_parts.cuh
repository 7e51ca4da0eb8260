// The first kernel of sampling: prepares logits and takes sums of the parts of each row, which the
// second one merges.
#pragma once

#include <cfloat>
#include <cstdint>

#include "gpu_worker/ops/model/cuda/sampling_entries.cuh"
#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer::cuda::sampling {

inline constexpr int kPartThreads = 512;

// What is known of a part of a row: of the model's logits, and of those that are drawn from.
struct PartSums {
  double sum;       // of exp(model's logit - model_max)
  double weighted;  // of exp((logit - max) / temperature)
  float model_max;
  float max;
  int32_t token;  // the lowest with logit max; the vocabulary's size if all are minus infinity
};

struct SamplingLaunch {
  std::byte* logits;
  int64_t logits_stride;
  float* adjusted;  // [rows, vocab]
  int32_t vocab;
  const SamplingRow* rows;
  const SamplingBias* const* biases;   // or null
  const uint32_t* const* occurrences;  // or null
  const uint32_t* const* masks;        // or null
  int32_t* tokens;
  float* logprobs;
  int32_t* top_tokens;
  float* top_logprobs;
  int32_t* ranks;
  PartSums* parts;  // [rows, num_parts]
  int32_t num_parts;

  __device__ float* Logits(int64_t row) const {
    return reinterpret_cast<float*>(logits) + row * logits_stride;
  }
  __device__ float* Adjusted(int64_t row) const { return adjusted + row * vocab; }
  __device__ const uint32_t* Occurrences(int64_t row) const {
    return occurrences == nullptr ? nullptr : occurrences[row];
  }
  __device__ const uint32_t* Mask(int64_t row) const {
    return masks == nullptr ? nullptr : masks[row];
  }
  // Whether a row is drawn from other logits than the model's.
  __device__ bool IsAdjusted(int64_t row) const {
    return rows[row].num_biases > 0 || Occurrences(row) != nullptr || Mask(row) != nullptr;
  }
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

// A logit that is finite or minus infinity, and no negative zero.
__device__ inline float Sanitized(float logit) {
  return isnan(logit) ? -INFINITY : fminf(logit, FLT_MAX) + 0.0f;
}

// How often the token is among those that the row's occurrences do not have yet.
// `row` is in memory: a copy with a list would not fit into registers.
__device__ inline uint32_t CountAhead(const SamplingRow* row, int32_t num_ahead, int32_t token) {
  uint32_t count = 0;
  for (int32_t k = 0; k < num_ahead; ++k) count += row->ahead[k] == token;
  return count;
}

// A logit after penalties, sanitized.
__device__ inline float Penalized(float logit, uint32_t seen, const SamplingRow& row) {
  if (seen != 0) {
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    const uint32_t generated = seen & 0x7fffffffu;
    if (generated > 0) {
      logit -= row.frequency_penalty * static_cast<float>(generated) + row.presence_penalty;
    }
  }
  return Sanitized(logit);
}

// Reads the part [begin, end) of a row of the model's logits, sanitized, here and where it was.
// values[k]: of token begin + k * kPartThreads + threadIdx.x; minus infinity behind the end.
template <int kEach>
__device__ inline void LoadPart(float* logits, int32_t begin, int32_t end, float (&values)[kEach]) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    values[k] = token < end ? logits[token] : -INFINITY;
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    const float logit = Sanitized(values[k]);
    if (token < end && __float_as_uint(logit) != __float_as_uint(values[k])) logits[token] = logit;
    values[k] = logit;
  }
}

// Writes the part [begin, end) of an adjusted row: the model's logits with biases and penalties,
// and minus infinity where the mask allows no token. values[k]: as LoadPart() has read them;
// adjusted then.
template <int kEach>
__device__ inline void AdjustPart(const SamplingLaunch& launch, int64_t i, const SamplingRow& row,
                                  int32_t begin, int32_t end, float (&values)[kEach]) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float* const adjusted = launch.Adjusted(i);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    if (token < end) adjusted[token] = values[k];
  }
  __syncthreads();  // A bias is added by another thread than the one that has its token.
  for (int32_t b = thread; b < row.num_biases; b += kPartThreads) {
    const SamplingBias bias = launch.biases[i][b];
    if (bias.token >= begin && bias.token < end) adjusted[bias.token] += bias.bias;
  }
  __syncthreads();
  const uint32_t* const occurrences = launch.Occurrences(i);
  const uint32_t* const mask = launch.Mask(i);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    if (token >= end) continue;
    const uint32_t seen =
        occurrences == nullptr
            ? 0
            : occurrences[token] + CountAhead(launch.rows + i, row.num_ahead, token);
    const bool allowed = mask == nullptr || (mask[token / 32] >> (token % 32) & 1) != 0;
    values[k] = allowed ? Penalized(adjusted[token], seen, row) : -INFINITY;
    adjusted[token] = values[k];
  }
}

// blockIdx.x: part; blockIdx.y: row. Sanitizes the model's logits in place, and writes those of an
// adjusted row beside them; a thread keeps its logits in registers until the part's largest is
// known.
inline __global__ void __launch_bounds__(kPartThreads) PartsKernel(const SamplingLaunch launch) {
  constexpr int kEach = kSamplingPartSize / kPartThreads;
  constexpr int kPartWarps = kPartThreads / 32;
  static_assert(kPartWarps <= 32);
  __shared__ float maxima[kPartWarps], model_maxima[kPartWarps];
  __shared__ int32_t tokens[kPartWarps];
  __shared__ double sums[2][kPartWarps];
  const int64_t i = blockIdx.y;
  const SamplingRow row = launch.rows[i];
  const auto begin = static_cast<int32_t>(blockIdx.x * kSamplingPartSize);
  const auto end = static_cast<int32_t>(min(begin + kSamplingPartSize, int64_t{launch.vocab}));
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float values[kEach], model_values[kEach];
  LoadPart(launch.Logits(i), begin, end, values);
  float model_max = -INFINITY;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    model_values[k] = values[k];
    model_max = fmaxf(model_max, values[k]);
  }
  if (launch.IsAdjusted(i)) AdjustPart(launch, i, row, begin, end, values);
  float max = -INFINITY;
  int32_t at = launch.vocab;  // So that a thread without a token never wins.
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int32_t token = begin + k * kPartThreads + thread;
    if (values[k] > -INFINITY) KeepLargest(values[k], token, max, at);
  }
  const int warp = thread / 32, lane = thread % 32;
  KeepLargestOfWarp(max, at);
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    model_max = fmaxf(model_max, __shfl_xor_sync(~0u, model_max, lanes));
  }
  if (lane == 0) {
    maxima[warp] = max;
    model_maxima[warp] = model_max;
    tokens[warp] = at;
  }
  __syncthreads();
  for (int w = 0; w < kPartWarps; ++w) {
    KeepLargest(maxima[w], tokens[w], max, at);
    model_max = fmaxf(model_max, model_maxima[w]);
  }
  float sum = 0, weighted = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (model_values[k] > -INFINITY) sum += expf(model_values[k] - model_max);
    if (values[k] > -INFINITY && row.temperature > 0) {
      weighted += expf((values[k] - max) / row.temperature);
    }
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
    launch.parts[i * launch.num_parts + blockIdx.x] = {all, all_weighted, model_max, max, at};
  }
}

// What the parts of a row say of it.
struct RowSums {
  float model_max = -INFINITY;
  float max = -INFINITY;
  int32_t token = 0;    // the lowest of the largest
  double sum = 0;       // of exp(model's logit - model_max)
  double weighted = 0;  // of exp((logit - max) / temperature)
};

// Every thread gets it.
__device__ inline RowSums MergeParts(const PartSums* parts, int32_t num_parts, int32_t vocab,
                                     float temperature) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  RowSums row{.token = vocab};
  for (int32_t p = lane; p < num_parts; p += 32) {
    KeepLargest(parts[p].max, parts[p].token, row.max, row.token);
    row.model_max = fmaxf(row.model_max, parts[p].model_max);
  }
  KeepLargestOfWarp(row.max, row.token);
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    row.model_max = fmaxf(row.model_max, __shfl_xor_sync(~0u, row.model_max, lanes));
  }
  for (int32_t p = lane; p < num_parts; p += 32) {
    const PartSums part = parts[p];
    if (part.model_max > -INFINITY) row.sum += part.sum * expf(part.model_max - row.model_max);
    if (part.max > -INFINITY && temperature > 0) {
      row.weighted += part.weighted * expf((part.max - row.max) / temperature);
    }
  }
  row.sum = WarpSum(row.sum);
  row.weighted = WarpSum(row.weighted);
  if (row.token >= vocab) row.token = 0;
  return row;
}

}  // namespace retroinfer::cuda::sampling
