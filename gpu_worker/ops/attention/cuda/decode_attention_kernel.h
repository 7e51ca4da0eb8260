// What decode_attention.cc asks of the kernels in decode_attention_{kernel,merge}.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/attention/cuda/decode_attention_scratch.h"
#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/cuda/group_slice.h"

namespace retroinfer::cuda {

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
  const RowRun* runs;  // whose pages are not attended here
  int32_t num_runs;
  const float* estimate_max;  // or null
  const float* estimate_sum;
  const float* estimate_acc;
  const float* unseen_max;  // or null
  const float* unseen_sum;
  float* unseen_share;
  std::byte* scratch;
  const float* sinks;  // [query_heads], or null
  int32_t window;      // newest tokens of a zone's window that are attended; 0: all
  float scale_log2;    // scale * log2(e)
  uint32_t num_layers;
  uint32_t layer;
  int32_t kv_heads;
  GroupSlice slice;                       // at most kDecodeGroup heads
  int32_t first_sequence, num_sequences;  // at most kMaxDecodeSequences
  int32_t first_head, num_heads;          // at most kMaxDecodeHeads; the product kMaxDecodeUnits
  int32_t plan_blocks = 0;  // blocks that a sequence is cut for; set at the launch of the parts
};

// Enqueues the attention over all parts. `element`: of keys and values, bf16 or f32, or int8 for
// kEightBitTokens.
cudaError_t LaunchDecodeParts(const DecodeLaunch& launch, DType element, uint32_t head_dim,
                              cudaStream_t stream);
// Enqueues what merges them with the estimate. `early`: nothing was enqueued between the two.
cudaError_t LaunchDecodeMerge(const DecodeLaunch& launch, uint32_t head_dim, bool early,
                              cudaStream_t stream);

}  // namespace retroinfer::cuda
