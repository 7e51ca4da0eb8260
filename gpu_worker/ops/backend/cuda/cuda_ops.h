// The operations of the CUDA backend. Activations are bf16; sums, scores and logits are f32.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/attention/cuda/cuda_attention_ops.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/ops/block_cache/cuda/cuda_block_cache_ops.h"
#include "gpu_worker/ops/collective/cuda/cuda_collective_ops.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/index/cuda/cuda_index_ops.h"
#include "gpu_worker/ops/model/cuda/cuda_model_ops.h"

namespace retroinfer {

// Threads: any, on different streams. All streams must be of a CudaDevice.
// Owns:    handles and workspaces of NVIDIA's libraries.
class CudaOps final : public Ops {
 public:
  // `device` gives the memory for prepared weights and workspaces; it must outlive them. `ranks`:
  // what the ranks of a model share, which must outlive the result and is asked for peer access
  // (PeerExchange::Create, which says what `memory` is); null if there is one.
  static absl::StatusOr<std::unique_ptr<CudaOps>> Create(
      CudaDevice& device, RankMemory* ranks = nullptr,
      cuda::PeerMemory memory = cuda::PeerMemory::kAuto);
  ~CudaOps() override;

  ModelOps& model() override { return model_; }
  AttentionOps& attention() override { return attention_; }
  IndexOps& index() override { return index_; }
  BlockCacheOps& block_cache() override { return block_cache_; }
  CollectiveOps& collective() override { return collective_; }
  // Why ranks meet in the host's memory; OK if they do not.
  absl::Status peer_access() const;
  absl::Status CheckKvFormat(const KvFormat& format) const override {
    return retroinfer::CheckKvFormat(cuda::kKvElementTypes, format);
  }

 private:
  CudaOps(std::unique_ptr<cuda::LinearContext> linear,
          std::unique_ptr<cuda::PrefillAttentionContext> prefill,
          std::unique_ptr<cuda::PeerExchange> exchange);

  const std::unique_ptr<cuda::LinearContext> linear_;
  const std::unique_ptr<cuda::PrefillAttentionContext> prefill_;
  const std::unique_ptr<cuda::PeerExchange> exchange_;  // null: there is one rank
  CudaModelOps model_;
  CudaAttentionOps attention_;
  CudaIndexOps index_;
  CudaBlockCacheOps block_cache_;
  CudaCollectiveOps collective_;
};

}  // namespace retroinfer
