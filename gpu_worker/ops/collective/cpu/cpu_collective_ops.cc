#include "gpu_worker/ops/collective/cpu/cpu_collective_ops.h"

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/collective/cpu/all_gather.h"
#include "gpu_worker/ops/collective/cpu/all_reduce.h"
#include "gpu_worker/ops/collective/cpu/norm_of_sum.h"

namespace retroinfer {

absl::Status CpuCollectiveOps::AllReduce(Stream& stream, const AllReduceArgs& args) {
  return cpu::AllReduce(CpuStream::Of(stream), ranks_, args);
}

absl::Status CpuCollectiveOps::AllGather(Stream& stream, const AllGatherArgs& args) {
  return cpu::AllGather(CpuStream::Of(stream), ranks_, args);
}

absl::Status CpuCollectiveOps::NormOfSum(Stream& stream, const NormOfSumArgs& args) {
  return cpu::NormOfSum(CpuStream::Of(stream), ranks_, args);
}

}  // namespace retroinfer
