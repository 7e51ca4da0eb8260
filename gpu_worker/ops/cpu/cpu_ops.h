// The operations of the CPU backend: a thin dispatch to one function for each operation.
#pragma once

#include <memory>

#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/compute_precision.h"
#include "gpu_worker/ops/ops.h"

namespace retroinfer {

// Threads: any, on different streams. All streams must be of a CpuDevice.
class CpuOps final : public Ops {
 public:
  // `device` gives the memory for prepared weights; it must outlive them.
  CpuOps(CpuDevice& device, ComputePrecision precision) : device_(device), precision_(precision) {}

  DType activation_dtype() const override { return DType::kF32; }

  absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(
      const LinearWeights& weights) override;

  absl::Status Embedding(Stream& stream, const EmbeddingArgs& args) override;
  absl::Status RmsNorm(Stream& stream, const RmsNormArgs& args) override;
  absl::Status Linear(Stream& stream, const LinearArgs& args) override;
  absl::Status GatedLinear(Stream& stream, const GatedLinearArgs& args) override;
  absl::Status RopeTable(Stream& stream, const RopeTableArgs& args) override;
  absl::Status Rope(Stream& stream, const RopeArgs& args) override;
  absl::Status SiluMul(Stream& stream, const SiluMulArgs& args) override;

  absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) override;
  absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) override;
  absl::Status FillDense(Stream& stream, const FillDenseArgs& args) override;
  absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) override;
  absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) override;

  size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                     int32_t head_dim) const override;
  absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) override;

  size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim, int32_t num_tokens,
                                 int32_t num_clusters) const override;
  absl::Status ClusterKeys(Stream& stream, const ClusterKeysArgs& args) override;
  absl::Status WriteSegment(Stream& stream, const WriteSegmentArgs& args) override;
  absl::Status LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) override;
  absl::Status ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) override;
  absl::Status CentroidScore(Stream& stream, const CentroidScoreArgs& args) override;
  absl::Status ClusterSelect(Stream& stream, const ClusterSelectArgs& args) override;
  // This backend needs none.
  size_t EstimateScratchBytes(int32_t /*max_batch*/, int32_t /*num_query_heads*/,
                              int32_t /*head_dim*/, int64_t /*max_estimated*/) const override {
    return 0;
  }
  absl::Status Estimate(Stream& stream, const EstimateArgs& args) override;
  bool uses_transient_slots() const override { return true; }
  absl::Status PageLookup(Stream& stream, const PageLookupArgs& args) override;
  absl::Status AdmitPages(Stream& stream, const AdmitPagesArgs& args) override;
  absl::Status ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) override;
  absl::Status ReleasePages(Stream& stream, const ReleasePagesArgs& args) override;
  absl::Status TakeSlots(Stream& stream, const TakeSlotsArgs& args) override;
  absl::Status AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) override;
  absl::Status LogSnapshot(Stream& stream, const LogSnapshotArgs& args) override;

  absl::Status Sampling(Stream& stream, const SamplingArgs& args) override;

 private:
  CpuDevice& device_;
  const ComputePrecision precision_;
};

}  // namespace retroinfer
