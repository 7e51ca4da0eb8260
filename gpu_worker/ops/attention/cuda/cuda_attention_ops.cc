#include "gpu_worker/ops/attention/cuda/cuda_attention_ops.h"

#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/cuda/decode_attention.h"
#include "gpu_worker/ops/attention/cuda/layer_kv.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"
#include "gpu_worker/ops/attention/cuda/shared_page_attention.h"

namespace retroinfer {

absl::Status CudaAttentionOps::StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) {
  return cuda::StoreLayerKv(CudaStream::Of(stream), args);
}

absl::Status CudaAttentionOps::PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) {
  return cuda::PrefillAttention(prefill_, CudaStream::Of(stream), args);
}

size_t CudaAttentionOps::PrefillAttentionScratchBytes(int64_t max_rows, int64_t max_tokens,
                                                      int64_t num_query_heads) const {
  return cuda::PrefillAttentionScratchBytes(max_rows, max_tokens, num_query_heads);
}

absl::Status CudaAttentionOps::FillDense(Stream& stream, const FillDenseArgs& args) {
  return cuda::FillDense(CudaStream::Of(stream), args);
}

absl::Status CudaAttentionOps::ReadDense(Stream& stream, const ReadDenseArgs& args) {
  return cuda::ReadDense(CudaStream::Of(stream), args);
}

absl::Status CudaAttentionOps::AppendDense(Stream& stream, const AppendDenseArgs& args) {
  return cuda::AppendDense(CudaStream::Of(stream), args);
}

size_t CudaAttentionOps::DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                                     int32_t head_dim) const {
  return cuda::DecodeAttentionScratchBytes(max_batch, num_query_heads, head_dim);
}

absl::Status CudaAttentionOps::DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) {
  return cuda::DecodeAttention(CudaStream::Of(stream), args);
}

size_t CudaAttentionOps::SharedPageAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                                         int32_t head_dim) const {
  return cuda::SharedPageAttentionScratchBytes(max_batch, num_query_heads, head_dim);
}

absl::Status CudaAttentionOps::SharedPageAttention(Stream& stream,
                                                   const SharedPageAttentionArgs& args) {
  return cuda::SharedPageAttention(CudaStream::Of(stream), args);
}

}  // namespace retroinfer
