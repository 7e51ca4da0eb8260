// The attention operations of the CUDA backend: a thin dispatch to one function each.
#pragma once

#include "gpu_worker/ops/attention/attention_ops.h"

namespace retroinfer {

namespace cuda {
class PrefillAttentionContext;
}  // namespace cuda

class CudaAttentionOps final : public AttentionOps {
 public:
  // `prefill` must outlive this.
  explicit CudaAttentionOps(cuda::PrefillAttentionContext& prefill) : prefill_(prefill) {}

  absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) override;
  absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) override;
  size_t PrefillAttentionScratchBytes(int64_t max_rows, int64_t max_tokens,
                                      int64_t num_query_heads) const override;
  absl::Status FillDense(Stream& stream, const FillDenseArgs& args) override;
  absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) override;
  absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) override;
  size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                     int32_t head_dim) const override;
  absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) override;
  size_t SharedPageAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                         int32_t head_dim) const override;
  absl::Status SharedPageAttention(Stream& stream, const SharedPageAttentionArgs& args) override;

 private:
  cuda::PrefillAttentionContext& prefill_;
};

}  // namespace retroinfer
