#include "gpu_worker/ops/backend/cuda/cuda_ops.h"

#include <utility>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"
#include "gpu_worker/ops/model/cuda/linear.h"

namespace retroinfer {

CudaOps::CudaOps(std::unique_ptr<cuda::LinearContext> linear,
                 std::unique_ptr<cuda::PrefillAttentionContext> prefill,
                 std::unique_ptr<cuda::PeerExchange> exchange)
    : linear_(std::move(linear)),
      prefill_(std::move(prefill)),
      exchange_(std::move(exchange)),
      model_(*linear_),
      attention_(*prefill_),
      collective_(exchange_.get()) {}

CudaOps::~CudaOps() = default;

absl::Status CudaOps::peer_access() const {
  return exchange_ == nullptr ? absl::OkStatus() : exchange_->peer_access();
}

absl::StatusOr<std::unique_ptr<CudaOps>> CudaOps::Create(CudaDevice& device, RankMemory* ranks,
                                                         cuda::PeerMemory memory) {
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::LinearContext> linear,
                   cuda::LinearContext::Create(device));
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::PrefillAttentionContext> prefill,
                   cuda::PrefillAttentionContext::Create(device));
  std::unique_ptr<cuda::PeerExchange> exchange;
  if (ranks != nullptr) {
    ASSIGN_OR_RETURN(exchange, cuda::PeerExchange::Create(device, *ranks, memory));
  }
  return absl::WrapUnique(new CudaOps(std::move(linear), std::move(prefill), std::move(exchange)));
}

}  // namespace retroinfer
