// The CUDA backend's gathering of columns (contract in gpu_worker/ops/collective/all_gather.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/collective/all_gather.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

namespace retroinfer::cuda {

// `exchange`: null for one rank.
absl::Status AllGather(CudaStream& stream, const PeerExchange* exchange, const AllGatherArgs& args);

}  // namespace retroinfer::cuda
