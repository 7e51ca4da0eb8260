// Operations of the CUDA backend whose prompts choose blocks of keys as ever, and then attend to
// blocks that are drawn (bench/support/drawn_blocks.h), the same in all layers.
//
// Threads: as the operations, on one stream.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "bench/support/drawn_blocks.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer::bench {

class DrawnChoices final : public AttentionOps {
 public:
  // `device` and `ops` outlive this.
  DrawnChoices(CudaDevice& device, AttentionOps& ops, double density);

  // Of all that was drawn so far: a pass that was met before is not drawn again.
  const BlockTotals& totals() const { return totals_; }

  absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) override;
  size_t PrefillAttentionScratchBytes(int64_t max_rows, int64_t max_tokens,
                                      int64_t num_query_heads) const override {
    return ops_.PrefillAttentionScratchBytes(max_rows, max_tokens, num_query_heads);
  }
  absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) override {
    return ops_.StoreLayerKv(stream, args);
  }
  absl::Status FillDense(Stream& stream, const FillDenseArgs& args) override {
    return ops_.FillDense(stream, args);
  }
  absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) override {
    return ops_.ReadDense(stream, args);
  }
  absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) override {
    return ops_.AppendDense(stream, args);
  }
  size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                     int32_t head_dim) const override {
    return ops_.DecodeAttentionScratchBytes(max_batch, num_query_heads, head_dim);
  }
  absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) override {
    return ops_.DecodeAttention(stream, args);
  }
  size_t SharedPageAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                         int32_t head_dim) const override {
    return ops_.SharedPageAttentionScratchBytes(max_batch, num_query_heads, head_dim);
  }
  absl::Status SharedPageAttention(Stream& stream, const SharedPageAttentionArgs& args) override {
    return ops_.SharedPageAttention(stream, args);
  }

 private:
  absl::Status AttendUnits(CudaStream& stream, const PrefillAttentionArgs& args);
  absl::Status AttendSlice(CudaStream& stream, const PrefillAttentionArgs& units);
  // Words and counts of a pass, as they lie in ChoiceLayout.
  const DeviceBuffer& Draw(CudaStream& stream, int64_t first_token, int64_t num_units,
                           int64_t num_heads);

  CudaDevice& device_;
  AttentionOps& ops_;
  const double density_;
  std::unique_ptr<cuda::PrefillAttentionContext> context_;
  std::map<std::pair<int64_t, int64_t>, DeviceBuffer> drawn_;  // by first token and units
  BlockTotals totals_;
};

class OpsWithDrawnChoices final : public Ops {
 public:
  OpsWithDrawnChoices(CudaDevice& device, std::unique_ptr<Ops> ops, double density)
      : ops_(std::move(ops)), attention_(device, ops_->attention(), density) {}

  ModelOps& model() override { return ops_->model(); }
  DrawnChoices& attention() override { return attention_; }
  IndexOps& index() override { return ops_->index(); }
  BlockCacheOps& block_cache() override { return ops_->block_cache(); }
  CollectiveOps& collective() override { return ops_->collective(); }
  absl::Status CheckKvFormat(const KvFormat& format) const override {
    return ops_->CheckKvFormat(format);
  }

 private:
  const std::unique_ptr<Ops> ops_;
  DrawnChoices attention_;
};

}  // namespace retroinfer::bench
