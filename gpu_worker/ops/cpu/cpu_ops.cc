#include "gpu_worker/ops/cpu/cpu_ops.h"

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache_check.h"
#include "gpu_worker/ops/cpu/apply_evictions.h"
#include "gpu_worker/ops/cpu/centroid_score.h"
#include "gpu_worker/ops/cpu/cluster_keys.h"
#include "gpu_worker/ops/cpu/cluster_select.h"
#include "gpu_worker/ops/cpu/decode_attention.h"
#include "gpu_worker/ops/cpu/embedding.h"
#include "gpu_worker/ops/cpu/estimate.h"
#include "gpu_worker/ops/cpu/layer_kv.h"
#include "gpu_worker/ops/cpu/linear.h"
#include "gpu_worker/ops/cpu/load_segment_index.h"
#include "gpu_worker/ops/cpu/log_snapshot.h"
#include "gpu_worker/ops/cpu/page_lookup.h"
#include "gpu_worker/ops/cpu/prefill_attention.h"
#include "gpu_worker/ops/cpu/read_segment_layer.h"
#include "gpu_worker/ops/cpu/release_pages.h"
#include "gpu_worker/ops/cpu/rms_norm.h"
#include "gpu_worker/ops/cpu/rope.h"
#include "gpu_worker/ops/cpu/sampling.h"
#include "gpu_worker/ops/cpu/silu_mul.h"
#include "gpu_worker/ops/cpu/slot_fill.h"
#include "gpu_worker/ops/cpu/write_segment.h"

namespace retroinfer {
namespace {

CpuStream& Cpu(Stream& stream) { return static_cast<CpuStream&>(stream); }

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedLinear>> CpuOps::PrepareLinear(
    const LinearWeights& weights) {
  return cpu::PrepareLinear(device_, precision_, weights);
}

absl::Status CpuOps::Embedding(Stream& stream, const EmbeddingArgs& args) {
  return cpu::Embedding(Cpu(stream), args);
}

absl::Status CpuOps::RmsNorm(Stream& stream, const RmsNormArgs& args) {
  return cpu::RmsNorm(Cpu(stream), args);
}

absl::Status CpuOps::Linear(Stream& stream, const LinearArgs& args) {
  return cpu::Linear(Cpu(stream), args);
}

absl::Status CpuOps::GatedLinear(Stream& stream, const GatedLinearArgs& args) {
  RETURN_IF_ERROR(CheckGatedLinear(args, activation_dtype()));
  return GatedLinearInSteps(*this, stream, args);
}

absl::Status CpuOps::RopeTable(Stream& stream, const RopeTableArgs& args) {
  return cpu::RopeTable(Cpu(stream), args);
}

absl::Status CpuOps::Rope(Stream& stream, const RopeArgs& args) {
  return cpu::Rope(Cpu(stream), args);
}

absl::Status CpuOps::SiluMul(Stream& stream, const SiluMulArgs& args) {
  return cpu::SiluMul(Cpu(stream), args);
}

absl::Status CpuOps::StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) {
  return cpu::StoreLayerKv(Cpu(stream), args);
}

absl::Status CpuOps::PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) {
  return cpu::PrefillAttention(Cpu(stream), args, precision_);
}

absl::Status CpuOps::FillDense(Stream& stream, const FillDenseArgs& args) {
  return cpu::FillDense(Cpu(stream), args);
}

absl::Status CpuOps::ReadDense(Stream& stream, const ReadDenseArgs& args) {
  return cpu::ReadDense(Cpu(stream), args);
}

absl::Status CpuOps::AppendDense(Stream& stream, const AppendDenseArgs& args) {
  return cpu::AppendDense(Cpu(stream), args);
}

size_t CpuOps::DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                           int32_t head_dim) const {
  return cpu::DecodeAttentionScratchBytes(max_batch, num_query_heads, head_dim);
}

absl::Status CpuOps::DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) {
  return cpu::DecodeAttention(Cpu(stream), args);
}

absl::Status CpuOps::Sampling(Stream& stream, const SamplingArgs& args) {
  return cpu::Sampling(Cpu(stream), args);
}

size_t CpuOps::ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim, int32_t num_tokens,
                                       int32_t num_clusters) const {
  return cpu::ClusterKeysScratchBytes(num_kv_heads, head_dim, num_tokens, num_clusters);
}

absl::Status CpuOps::ClusterKeys(Stream& stream, const ClusterKeysArgs& args) {
  return cpu::ClusterKeys(Cpu(stream), args);
}

absl::Status CpuOps::WriteSegment(Stream& stream, const WriteSegmentArgs& args) {
  return cpu::WriteSegment(Cpu(stream), args);
}

absl::Status CpuOps::LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) {
  return cpu::LoadSegmentIndex(Cpu(stream), args);
}

absl::Status CpuOps::ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) {
  return cpu::ReadSegmentLayer(Cpu(stream), args);
}

absl::Status CpuOps::CentroidScore(Stream& stream, const CentroidScoreArgs& args) {
  return cpu::CentroidScore(Cpu(stream), args);
}

absl::Status CpuOps::ClusterSelect(Stream& stream, const ClusterSelectArgs& args) {
  return cpu::ClusterSelect(Cpu(stream), args);
}

absl::Status CpuOps::Estimate(Stream& stream, const EstimateArgs& args) {
  return cpu::Estimate(Cpu(stream), args);
}

absl::Status CpuOps::PageLookup(Stream& stream, const PageLookupArgs& args) {
  return cpu::PageLookup(Cpu(stream), args);
}

absl::Status CpuOps::AdmitPages(Stream& /*stream*/, const AdmitPagesArgs& args) {
  return CheckAdmitPages(args);  // PageLookup has done it.
}

absl::Status CpuOps::ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) {
  return cpu::ApplyEvictions(Cpu(stream), args);
}

absl::Status CpuOps::ReleasePages(Stream& stream, const ReleasePagesArgs& args) {
  return cpu::ReleasePages(Cpu(stream), args);
}

absl::Status CpuOps::TakeSlots(Stream& stream, const TakeSlotsArgs& args) {
  return cpu::TakeSlots(Cpu(stream), args);
}

absl::Status CpuOps::AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) {
  return cpu::AdmitSlots(Cpu(stream), args);
}

absl::Status CpuOps::LogSnapshot(Stream& stream, const LogSnapshotArgs& args) {
  return cpu::LogSnapshot(Cpu(stream), args);
}

}  // namespace retroinfer
