#include "gpu_worker/ops/cuda/cuda_ops.h"

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/cuda/apply_evictions.h"
#include "gpu_worker/ops/cuda/centroid_score.h"
#include "gpu_worker/ops/cuda/cluster_keys.h"
#include "gpu_worker/ops/cuda/cluster_select.h"
#include "gpu_worker/ops/cuda/decode_attention.h"
#include "gpu_worker/ops/cuda/embedding.h"
#include "gpu_worker/ops/cuda/estimate.h"
#include "gpu_worker/ops/cuda/layer_kv.h"
#include "gpu_worker/ops/cuda/linear.h"
#include "gpu_worker/ops/cuda/load_segment_index.h"
#include "gpu_worker/ops/cuda/log_snapshot.h"
#include "gpu_worker/ops/cuda/page_lookup.h"
#include "gpu_worker/ops/cuda/prefill_attention.h"
#include "gpu_worker/ops/cuda/read_segment_layer.h"
#include "gpu_worker/ops/cuda/release_pages.h"
#include "gpu_worker/ops/cuda/rms_norm.h"
#include "gpu_worker/ops/cuda/rope.h"
#include "gpu_worker/ops/cuda/sampling.h"
#include "gpu_worker/ops/cuda/silu_mul.h"
#include "gpu_worker/ops/cuda/slot_fill.h"
#include "gpu_worker/ops/cuda/write_segment.h"

namespace retroinfer {
namespace {

CudaStream& Cuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace

CudaOps::CudaOps() = default;
CudaOps::~CudaOps() = default;

absl::StatusOr<std::unique_ptr<CudaOps>> CudaOps::Create(CudaDevice& device) {
  auto ops = absl::WrapUnique(new CudaOps());
  ASSIGN_OR_RETURN(ops->linear_, cuda::LinearContext::Create(device));
  ASSIGN_OR_RETURN(ops->prefill_, cuda::PrefillAttentionContext::Create(device));
  return ops;
}

absl::StatusOr<std::unique_ptr<PreparedLinear>> CudaOps::PrepareLinear(
    const LinearWeights& weights) {
  return cuda::PrepareLinear(*linear_, weights);
}

absl::Status CudaOps::Embedding(Stream& stream, const EmbeddingArgs& args) {
  return cuda::Embedding(Cuda(stream), args);
}

absl::Status CudaOps::RmsNorm(Stream& stream, const RmsNormArgs& args) {
  return cuda::RmsNorm(Cuda(stream), args);
}

absl::Status CudaOps::Linear(Stream& stream, const LinearArgs& args) {
  return cuda::Linear(*linear_, Cuda(stream), args);
}

absl::Status CudaOps::GatedLinear(Stream& stream, const GatedLinearArgs& args) {
  RETURN_IF_ERROR(CheckGatedLinear(args, activation_dtype()));
  if (cuda::FusesGatedLinear(args)) return cuda::GatedLinear(Cuda(stream), args);
  return GatedLinearInSteps(*this, stream, args);
}

absl::Status CudaOps::RopeTable(Stream& stream, const RopeTableArgs& args) {
  return cuda::RopeTable(Cuda(stream), args);
}

absl::Status CudaOps::Rope(Stream& stream, const RopeArgs& args) {
  return cuda::Rope(Cuda(stream), args);
}

absl::Status CudaOps::SiluMul(Stream& stream, const SiluMulArgs& args) {
  return cuda::SiluMul(Cuda(stream), args);
}

absl::Status CudaOps::StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) {
  return cuda::StoreLayerKv(Cuda(stream), args);
}

absl::Status CudaOps::PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) {
  return cuda::PrefillAttention(*prefill_, Cuda(stream), args);
}

absl::Status CudaOps::FillDense(Stream& stream, const FillDenseArgs& args) {
  return cuda::FillDense(Cuda(stream), args);
}

absl::Status CudaOps::ReadDense(Stream& stream, const ReadDenseArgs& args) {
  return cuda::ReadDense(Cuda(stream), args);
}

absl::Status CudaOps::AppendDense(Stream& stream, const AppendDenseArgs& args) {
  return cuda::AppendDense(Cuda(stream), args);
}

size_t CudaOps::DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                            int32_t head_dim) const {
  return cuda::DecodeAttentionScratchBytes(max_batch, num_query_heads, head_dim);
}

absl::Status CudaOps::DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) {
  return cuda::DecodeAttention(Cuda(stream), args);
}

absl::Status CudaOps::Sampling(Stream& stream, const SamplingArgs& args) {
  return cuda::Sampling(Cuda(stream), args);
}

size_t CudaOps::ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                        int32_t num_tokens, int32_t num_clusters) const {
  return cuda::ClusterKeysScratchBytes(num_kv_heads, head_dim, num_tokens, num_clusters);
}

absl::Status CudaOps::ClusterKeys(Stream& stream, const ClusterKeysArgs& args) {
  return cuda::ClusterKeys(Cuda(stream), args);
}

absl::Status CudaOps::WriteSegment(Stream& stream, const WriteSegmentArgs& args) {
  return cuda::WriteSegment(Cuda(stream), args);
}

absl::Status CudaOps::LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) {
  return cuda::LoadSegmentIndex(Cuda(stream), args);
}

absl::Status CudaOps::ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) {
  return cuda::ReadSegmentLayer(Cuda(stream), args);
}

absl::Status CudaOps::CentroidScore(Stream& stream, const CentroidScoreArgs& args) {
  return cuda::CentroidScore(Cuda(stream), args);
}

absl::Status CudaOps::ClusterSelect(Stream& stream, const ClusterSelectArgs& args) {
  return cuda::ClusterSelect(Cuda(stream), args);
}

size_t CudaOps::EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                                     int64_t max_estimated) const {
  return cuda::EstimateScratchBytes(max_batch, num_query_heads, head_dim, max_estimated);
}

absl::Status CudaOps::Estimate(Stream& stream, const EstimateArgs& args) {
  return cuda::Estimate(Cuda(stream), args);
}

absl::Status CudaOps::PageLookup(Stream& stream, const PageLookupArgs& args) {
  return cuda::PageLookup(Cuda(stream), args);
}

absl::Status CudaOps::AdmitPages(Stream& stream, const AdmitPagesArgs& args) {
  return cuda::AdmitPages(Cuda(stream), args);
}

absl::Status CudaOps::ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) {
  return cuda::ApplyEvictions(Cuda(stream), args);
}

absl::Status CudaOps::ReleasePages(Stream& stream, const ReleasePagesArgs& args) {
  return cuda::ReleasePages(Cuda(stream), args);
}

absl::Status CudaOps::TakeSlots(Stream& stream, const TakeSlotsArgs& args) {
  return cuda::TakeSlots(Cuda(stream), args);
}

absl::Status CudaOps::AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) {
  return cuda::AdmitSlots(Cuda(stream), args);
}

absl::Status CudaOps::LogSnapshot(Stream& stream, const LogSnapshotArgs& args) {
  return cuda::LogSnapshot(Cuda(stream), args);
}

}  // namespace retroinfer
