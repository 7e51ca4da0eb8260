#include "gpu_worker/ops/cpu/cpu_ops.h"

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/cpu/decode_attention.h"
#include "gpu_worker/ops/cpu/embedding.h"
#include "gpu_worker/ops/cpu/layer_kv.h"
#include "gpu_worker/ops/cpu/linear.h"
#include "gpu_worker/ops/cpu/prefill_attention.h"
#include "gpu_worker/ops/cpu/rms_norm.h"
#include "gpu_worker/ops/cpu/rope.h"
#include "gpu_worker/ops/cpu/sampling.h"
#include "gpu_worker/ops/cpu/silu_mul.h"

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

absl::Status CpuOps::ClusterKeys(Stream&, const ClusterKeysArgs&) {
  return absl::UnimplementedError("ClusterKeys");
}

absl::Status CpuOps::WriteSegment(Stream&, const WriteSegmentArgs&) {
  return absl::UnimplementedError("WriteSegment");
}

absl::Status CpuOps::CentroidScore(Stream&, const CentroidScoreArgs&) {
  return absl::UnimplementedError("CentroidScore");
}

absl::Status CpuOps::ClusterSelect(Stream&, const ClusterSelectArgs&) {
  return absl::UnimplementedError("ClusterSelect");
}

absl::Status CpuOps::Estimate(Stream&, const EstimateArgs&) {
  return absl::UnimplementedError("Estimate");
}

absl::Status CpuOps::PageLookup(Stream&, const PageLookupArgs&) {
  return absl::UnimplementedError("PageLookup");
}

absl::Status CpuOps::ApplyEvictions(Stream&, const ApplyEvictionsArgs&) {
  return absl::UnimplementedError("ApplyEvictions");
}

absl::Status CpuOps::ReleasePages(Stream&, const ReleasePagesArgs&) {
  return absl::UnimplementedError("ReleasePages");
}

absl::Status CpuOps::LogSnapshot(Stream&, const LogSnapshotArgs&) {
  return absl::UnimplementedError("LogSnapshot");
}

}  // namespace retroinfer
