// The CUDA backend's decode attention (contract in gpu_worker/ops/attention/decode_attention.h).
// Work is divided on the device by the lengths found there, so a captured call may be replayed
// while they change. Scratch may hold anything before a call; calls that run at the same time need
// one each.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/cuda/decode_attention_scratch.h"
#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer::cuda {

absl::Status DecodeAttention(CudaStream& stream, const DecodeAttentionArgs& args);

}  // namespace retroinfer::cuda
