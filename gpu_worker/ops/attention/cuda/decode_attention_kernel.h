// What decode_attention.cc asks of the kernel in decode_attention_kernel.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer::cuda {

// Most blocks of a launch, and so most parts of a sequence: 2 on each of 160 multiprocessors.
inline constexpr int32_t kMaxDecodeBlocks = 320;
// Limits of one launch; larger batches take several.
inline constexpr int32_t kMaxDecodeUnits = 512;
inline constexpr int32_t kMaxDecodeSequences = 64;
inline constexpr int32_t kMaxDecodeHeads = 256;  // KV heads

// A call, or a part of one: addresses are of the whole call, [first, first + num) is the part.
struct DecodeLaunch {
  const std::byte* queries;  // bf16
  std::byte* out;            // bf16
  int64_t query_stride;      // elements
  int64_t out_stride;        // elements
  const std::byte* pool;
  const DenseZone* zones;    // [batch]
  const PageRef* pages;      // [batch, kv_heads, max_pages], or null
  const int32_t* num_pages;  // [batch, kv_heads], or null
  int64_t max_pages;
  const float* estimate_max;  // or null
  const float* estimate_sum;
  const float* estimate_acc;
  std::byte* scratch;
  float scale_log2;  // scale * log2(e)
  uint32_t num_layers;
  uint32_t layer;
  int32_t kv_heads;
  int32_t group;
  int32_t first_sequence, num_sequences;  // at most kMaxDecodeSequences
  int32_t first_head, num_heads;          // at most kMaxDecodeHeads; the product kMaxDecodeUnits
};

// Scratch of a launch: parts of each unit, kMaxDecodeUnits times 8 bytes; (max, sum)
// [parts][group][2] f32; acc [parts][group][head_dim] f32.
inline constexpr size_t kDecodePlanBytes = size_t{kMaxDecodeUnits} * 8;

// Parts that a launch over `num_sequences` sequences may have.
constexpr int64_t MaxDecodeParts(int64_t num_sequences) {
  static_assert(kMaxDecodeHeads <= kMaxDecodeBlocks);
  return num_sequences * kMaxDecodeBlocks;
}

// Enqueues the attention over all parts. `element`: of keys and values, bf16 or f32.
cudaError_t LaunchDecodeParts(const DecodeLaunch& launch, DType element, uint32_t head_dim,
                              cudaStream_t stream);
// Enqueues what merges them with the estimate. `early`: nothing was enqueued between the two.
cudaError_t LaunchDecodeMerge(const DecodeLaunch& launch, uint32_t head_dim, bool early,
                              cudaStream_t stream);

}  // namespace retroinfer::cuda
