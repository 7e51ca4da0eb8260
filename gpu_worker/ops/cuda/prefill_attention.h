// The CUDA backend's prefill attention (contract in gpu_worker/ops/prefill_attention.h).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/prefill_attention.h"

namespace retroinfer::cuda {

// Handles, plans and workspace.
class PrefillAttentionContext {
 public:
  static absl::StatusOr<std::unique_ptr<PrefillAttentionContext>> Create(CudaDevice& device);
};

absl::Status PrefillAttention(PrefillAttentionContext& context, CudaStream& stream,
                              const PrefillAttentionArgs& args);

}  // namespace retroinfer::cuda
