// Attention over keys and values in device memory, and the ways in and out of a layer's KV and
// of dense blocks.
//
// All calls as ops.h says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/attention/prefill_attention.h"
#include "gpu_worker/ops/attention/shared_page_attention.h"

namespace retroinfer {

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  virtual absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) = 0;
  virtual absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) = 0;
  // Of PrefillAttentionArgs::scratch.
  virtual size_t PrefillAttentionScratchBytes(int64_t max_rows, int64_t max_tokens,
                                              int64_t num_query_heads) const = 0;
  virtual absl::Status FillDense(Stream& stream, const FillDenseArgs& args) = 0;
  virtual absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) = 0;
  virtual absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) = 0;
  virtual size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                             int32_t head_dim) const = 0;
  virtual absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) = 0;
  virtual size_t SharedPageAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                                 int32_t head_dim) const = 0;
  virtual absl::Status SharedPageAttention(Stream& stream, const SharedPageAttentionArgs& args) = 0;
};

}  // namespace retroinfer
