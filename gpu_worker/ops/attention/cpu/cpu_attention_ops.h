// The attention operations of the CPU backend: a thin dispatch to one function each.
#pragma once

#include "gpu_worker/ops/attention/attention_ops.h"
#include "gpu_worker/ops/cpu/compute_precision.h"

namespace retroinfer {

class CpuAttentionOps final : public AttentionOps {
 public:
  explicit CpuAttentionOps(ComputePrecision precision) : precision_(precision) {}

  absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) override;
  absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) override;
  // Threads have their own.
  size_t PrefillAttentionScratchBytes(int64_t, int64_t, int64_t) const override { return 0; }
  absl::Status FillDense(Stream& stream, const FillDenseArgs& args) override;
  absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) override;
  absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) override;
  size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                     int32_t head_dim) const override;
  absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) override;
  // This backend needs none.
  size_t SharedPageAttentionScratchBytes(int32_t, int32_t, int32_t) const override { return 0; }
  absl::Status SharedPageAttention(Stream& stream, const SharedPageAttentionArgs& args) override;

 private:
  const ComputePrecision precision_;
};

}  // namespace retroinfer
