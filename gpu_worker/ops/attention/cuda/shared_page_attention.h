// The CUDA backend's attention to shared pages (contract in
// gpu_worker/ops/attention/shared_page_attention.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/cuda/shared_page_attention_scratch.h"
#include "gpu_worker/ops/attention/shared_page_attention.h"

namespace retroinfer::cuda {

absl::Status SharedPageAttention(CudaStream& stream, const SharedPageAttentionArgs& args);

}  // namespace retroinfer::cuda
