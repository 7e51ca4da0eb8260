// Kernels of decode_attention_cuda_bench: data, a plain read, and a slow reference.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer::bench {

// Fills `bytes` (a multiple of 16) with bf16 values between -1.7 and 1.7.
void FillBf16(std::byte* data, size_t bytes, uint32_t seed, cudaStream_t stream);

// Reads `bytes` (a multiple of 16) and writes something that depends on them to *sink.
void ReadAll(const std::byte* data, size_t bytes, uint32_t* sink, cudaStream_t stream);

// Attention of sequence 0 in f32, a token at a time: out [query_heads, 128]. `tokens` lists the
// addresses of the keys of each KV head, null where a head has fewer: [kv_heads][num_tokens]; the
// value of a key lies
// `value_offset` bytes behind it. `scores` has room for [query_heads][num_tokens].
struct ReferenceArgs {
  const std::byte* queries;  // bf16 [query_heads, 128]
  const std::byte* const* tokens;
  int32_t num_tokens;
  int32_t kv_heads;
  int32_t group;
  size_t value_offset;
  float scale;
  float* scores;
  float* out;
};
void Reference(const ReferenceArgs& args, cudaStream_t stream);

}  // namespace retroinfer::bench
