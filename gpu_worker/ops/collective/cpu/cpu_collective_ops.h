// What ranks do together, of the CPU backend: a thin dispatch to one function each.
#pragma once

#include "gpu_worker/ops/collective/collective_ops.h"
#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer {

class CpuCollectiveOps final : public CollectiveOps {
 public:
  // `ranks` must outlive it; null: there is one rank.
  explicit CpuCollectiveOps(RankMemory* ranks) : ranks_(ranks) {}

  TensorParallel parallel() const override {
    return ranks_ == nullptr ? TensorParallel() : ranks_->parallel();
  }
  absl::Status AllReduce(Stream& stream, const AllReduceArgs& args) override;
  absl::Status AllGather(Stream& stream, const AllGatherArgs& args) override;
  absl::Status NormOfSum(Stream& stream, const NormOfSumArgs& args) override;

 private:
  RankMemory* const ranks_;
};

}  // namespace retroinfer
