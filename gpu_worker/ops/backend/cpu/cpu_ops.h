// The operations of the CPU backend.
#pragma once

#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/attention/cpu/cpu_attention_ops.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/ops/block_cache/cpu/cpu_block_cache_ops.h"
#include "gpu_worker/ops/collective/cpu/cpu_collective_ops.h"
#include "gpu_worker/ops/cpu/compute_precision.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/index/cpu/cpu_index_ops.h"
#include "gpu_worker/ops/model/cpu/cpu_model_ops.h"

namespace retroinfer {

// Threads: any, on different streams. All streams must be of a CpuDevice.
class CpuOps final : public Ops {
 public:
  // `device` gives the memory for prepared weights; it must outlive them, and `ranks` this: what
  // the ranks of a model share, null if there is one.
  CpuOps(CpuDevice& device, ComputePrecision precision, RankMemory* ranks = nullptr)
      : model_(device, precision), attention_(precision), collective_(ranks) {}

  ModelOps& model() override { return model_; }
  AttentionOps& attention() override { return attention_; }
  IndexOps& index() override { return index_; }
  BlockCacheOps& block_cache() override { return block_cache_; }
  CollectiveOps& collective() override { return collective_; }
  absl::Status CheckKvFormat(const KvFormat& format) const override {
    return retroinfer::CheckKvFormat(cpu::kKvElementTypes, format);
  }

 private:
  CpuModelOps model_;
  CpuAttentionOps attention_;
  CpuIndexOps index_;
  CpuBlockCacheOps block_cache_;
  CpuCollectiveOps collective_;
};

}  // namespace retroinfer
