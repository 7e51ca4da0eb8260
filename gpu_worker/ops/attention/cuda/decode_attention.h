// The CUDA backend's decode attention (contract in gpu_worker/ops/decode_attention.h). Work is
// divided on the device by the lengths found there, so a captured call may be replayed while they
// change. Scratch may hold anything before a call; calls that run at the same time need one each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer::cuda {

size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim);
absl::Status DecodeAttention(CudaStream& stream, const DecodeAttentionArgs& args);

}  // namespace retroinfer::cuda
