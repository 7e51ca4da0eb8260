// What the ranks of a model do together. With one rank they copy, or do nothing.
//
// All calls as ops.h says; of a rank they come in the same order as of all others, on one stream
// at a time. They wait for the other ranks: a call that comes to nothing because a rank has ended
// (RankMemory::End) gives ABORTED, at once or where the stream is waited for.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/collective/all_gather.h"
#include "gpu_worker/ops/collective/all_reduce.h"
#include "gpu_worker/ops/collective/norm_of_sum.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"

namespace retroinfer {

class CollectiveOps {
 public:
  virtual ~CollectiveOps() = default;

  // Which rank this is.
  virtual TensorParallel parallel() const = 0;
  virtual absl::Status AllReduce(Stream& stream, const AllReduceArgs& args) = 0;
  virtual absl::Status AllGather(Stream& stream, const AllGatherArgs& args) = 0;
  virtual absl::Status NormOfSum(Stream& stream, const NormOfSumArgs& args) = 0;
};

}  // namespace retroinfer
