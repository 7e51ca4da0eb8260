// Working memory of the CUDA backend's decode attention. Free of CUDA, so that memory can be
// planned where there is none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/attention/decode_attention_check.h"

namespace retroinfer::cuda {

// Most blocks of a launch, and so most parts of a sequence: 2 on each of 160 multiprocessors.
inline constexpr int32_t kMaxDecodeBlocks = 320;
// Limits of one launch; larger batches take several.
inline constexpr int32_t kMaxDecodeUnits = 512;
inline constexpr int32_t kMaxDecodeSequences = 64;
inline constexpr int32_t kMaxDecodeHeads = 256;  // KV heads
inline constexpr int32_t kDecodeGroup = 8;       // query heads of each; those not there included

// Scratch of a launch: parts of each unit, kMaxDecodeUnits times 8 bytes; (max, sum)
// [parts][group][2] f32; acc [parts][group][head_dim] f32.
inline constexpr size_t kDecodePlanBytes = size_t{kMaxDecodeUnits} * 8;

// Parts that a launch over `num_sequences` sequences may have.
constexpr int64_t MaxDecodeParts(int64_t num_sequences) {
  static_assert(kMaxDecodeHeads <= kMaxDecodeBlocks);
  return num_sequences * kMaxDecodeBlocks;
}

constexpr size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                             int32_t head_dim) {
  const int64_t parts = MaxDecodeParts(std::min(max_batch, kMaxDecodeSequences));
  const int64_t floats = parts * std::min(num_query_heads, kDecodeGroup) * (2 + head_dim);
  return kDecodePlanBytes + static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace retroinfer::cuda
