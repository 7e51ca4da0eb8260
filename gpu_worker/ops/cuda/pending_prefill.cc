#include "gpu_worker/ops/cuda/prefill_attention.h"

namespace retroinfer::cuda {

absl::StatusOr<std::unique_ptr<PrefillAttentionContext>> PrefillAttentionContext::Create(
    CudaDevice&) {
  return std::make_unique<PrefillAttentionContext>();
}
absl::Status PrefillAttention(PrefillAttentionContext&, CudaStream&, const PrefillAttentionArgs&) {
  return absl::UnimplementedError("prefill");
}

}  // namespace retroinfer::cuda
