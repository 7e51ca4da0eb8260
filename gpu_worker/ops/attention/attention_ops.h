// Attention over keys and values in device memory, and the ways in and out of a layer's KV and
// of dense blocks.
//
// All calls as ops.h says.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/attention/decode_attention.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/attention/prefill_attention.h"

namespace retroinfer {

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  virtual absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) = 0;
  // Returns: UNIMPLEMENTED for a choice of blocks, unless ChoosesBlocks().
  virtual absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) = 0;
  // Whether PrefillAttention() can attend to chosen blocks of keys (block_choice.h).
  virtual bool ChoosesBlocks() const = 0;
  virtual absl::Status FillDense(Stream& stream, const FillDenseArgs& args) = 0;
  virtual absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) = 0;
  virtual absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) = 0;
  virtual size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                             int32_t head_dim) const = 0;
  virtual absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) = 0;
};

}  // namespace retroinfer
