// What ranks do together, of the CUDA backend: a thin dispatch to one function each.
#pragma once

#include "gpu_worker/ops/collective/collective_ops.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

namespace retroinfer {

class CudaCollectiveOps final : public CollectiveOps {
 public:
  // `exchange` must outlive it; null: there is one rank.
  explicit CudaCollectiveOps(const cuda::PeerExchange* exchange) : exchange_(exchange) {}

  TensorParallel parallel() const override {
    return exchange_ == nullptr ? TensorParallel() : exchange_->ranks().parallel();
  }
  absl::Status AllReduce(Stream& stream, const AllReduceArgs& args) override;
  absl::Status AllGather(Stream& stream, const AllGatherArgs& args) override;
  absl::Status NormOfSum(Stream& stream, const NormOfSumArgs& args) override;

 private:
  // ABORTED once a rank has ended.
  absl::Status CheckRanks() const;

  const cuda::PeerExchange* const exchange_;
};

}  // namespace retroinfer
