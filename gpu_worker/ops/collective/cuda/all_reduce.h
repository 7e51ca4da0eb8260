// The CUDA backend's sum over ranks (contract in gpu_worker/ops/collective/all_reduce.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/collective/all_reduce.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

namespace retroinfer::cuda {

// `exchange`: null for one rank. Rows are aligned to 16 bytes.
absl::Status AllReduce(CudaStream& stream, const PeerExchange* exchange, const AllReduceArgs& args);

}  // namespace retroinfer::cuda
