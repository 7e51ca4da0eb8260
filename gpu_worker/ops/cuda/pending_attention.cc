#include "gpu_worker/ops/cuda/decode_attention.h"

namespace retroinfer::cuda {

size_t DecodeAttentionScratchBytes(int32_t, int32_t, int32_t) { return 0; }
absl::Status DecodeAttention(CudaStream&, const DecodeAttentionArgs&) {
  return absl::UnimplementedError("DecodeAttention");
}

}  // namespace retroinfer::cuda
