#include "gpu_worker/ops/collective/cuda/cuda_collective_ops.h"

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/collective/cuda/all_gather.h"
#include "gpu_worker/ops/collective/cuda/all_reduce.h"
#include "gpu_worker/ops/collective/cuda/norm_of_sum.h"

namespace retroinfer {

absl::Status CudaCollectiveOps::CheckRanks() const {
  if (exchange_ == nullptr || !exchange_->ranks().ended()) return absl::OkStatus();
  return exchange_->ranks().EndedStatus();
}

absl::Status CudaCollectiveOps::AllReduce(Stream& stream, const AllReduceArgs& args) {
  RETURN_IF_ERROR(CheckRanks());
  return cuda::AllReduce(CudaStream::Of(stream), exchange_, args);
}

absl::Status CudaCollectiveOps::AllGather(Stream& stream, const AllGatherArgs& args) {
  RETURN_IF_ERROR(CheckRanks());
  return cuda::AllGather(CudaStream::Of(stream), exchange_, args);
}

absl::Status CudaCollectiveOps::NormOfSum(Stream& stream, const NormOfSumArgs& args) {
  RETURN_IF_ERROR(CheckRanks());
  return cuda::NormOfSum(CudaStream::Of(stream), exchange_, args);
}

}  // namespace retroinfer
