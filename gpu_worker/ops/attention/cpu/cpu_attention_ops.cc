#include "gpu_worker/ops/attention/cpu/cpu_attention_ops.h"

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/attention/cpu/decode_attention.h"
#include "gpu_worker/ops/attention/cpu/layer_kv.h"
#include "gpu_worker/ops/attention/cpu/prefill_attention.h"
#include "gpu_worker/ops/attention/cpu/shared_page_attention.h"

namespace retroinfer {

absl::Status CpuAttentionOps::StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) {
  return cpu::StoreLayerKv(CpuStream::Of(stream), args);
}

absl::Status CpuAttentionOps::PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) {
  return cpu::PrefillAttention(CpuStream::Of(stream), args, precision_);
}

absl::Status CpuAttentionOps::FillDense(Stream& stream, const FillDenseArgs& args) {
  return cpu::FillDense(CpuStream::Of(stream), args);
}

absl::Status CpuAttentionOps::ReadDense(Stream& stream, const ReadDenseArgs& args) {
  return cpu::ReadDense(CpuStream::Of(stream), args);
}

absl::Status CpuAttentionOps::AppendDense(Stream& stream, const AppendDenseArgs& args) {
  return cpu::AppendDense(CpuStream::Of(stream), args);
}

size_t CpuAttentionOps::DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                                    int32_t head_dim) const {
  return cpu::DecodeAttentionScratchBytes(max_batch, num_query_heads, head_dim);
}

absl::Status CpuAttentionOps::DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) {
  return cpu::DecodeAttention(CpuStream::Of(stream), args);
}

absl::Status CpuAttentionOps::SharedPageAttention(Stream& stream,
                                                  const SharedPageAttentionArgs& args) {
  return cpu::SharedPageAttention(CpuStream::Of(stream), args);
}

}  // namespace retroinfer
