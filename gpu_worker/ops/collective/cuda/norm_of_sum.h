// The CUDA backend's norms of a sum over ranks (contract in
// gpu_worker/ops/collective/norm_of_sum.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.h"
#include "gpu_worker/ops/collective/norm_of_sum.h"

namespace retroinfer::cuda {

// One kernel for up to kFirstBlocks rows of up to kFirstBytes; all else is the sum and the norms
// behind each other. `exchange`: null for one rank.
absl::Status NormOfSum(CudaStream& stream, const PeerExchange* exchange, const NormOfSumArgs& args);

}  // namespace retroinfer::cuda
