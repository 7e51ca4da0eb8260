#include "gpu_worker/ops/index/cpu/cpu_index_ops.h"

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/cpu/centroid_score.h"
#include "gpu_worker/ops/index/cpu/cluster_keys.h"
#include "gpu_worker/ops/index/cpu/cluster_select.h"
#include "gpu_worker/ops/index/cpu/estimate.h"
#include "gpu_worker/ops/index/cpu/load_segment_index.h"
#include "gpu_worker/ops/index/cpu/page_select.h"
#include "gpu_worker/ops/index/cpu/read_segment_layer.h"
#include "gpu_worker/ops/index/cpu/share_retrieved.h"
#include "gpu_worker/ops/index/cpu/unseen_mass.h"
#include "gpu_worker/ops/index/cpu/write_segment.h"

namespace retroinfer {

size_t CpuIndexOps::ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                            int32_t num_tokens, int32_t num_clusters) const {
  return cpu::ClusterKeysScratchBytes(num_kv_heads, head_dim, num_tokens, num_clusters);
}

absl::Status CpuIndexOps::ClusterKeys(Stream& stream, const ClusterKeysArgs& args) {
  return cpu::ClusterKeys(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::WriteSegment(Stream& stream, const WriteSegmentArgs& args) {
  return cpu::WriteSegment(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) {
  return cpu::LoadSegmentIndex(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) {
  return cpu::ReadSegmentLayer(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::CentroidScore(Stream& stream, const CentroidScoreArgs& args) {
  return cpu::CentroidScore(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::ClusterSelect(Stream& stream, const ClusterSelectArgs& args) {
  return cpu::ClusterSelect(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::ShareRetrieved(Stream& stream, const ShareRetrievedArgs& args) {
  return cpu::ShareRetrieved(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::PageSelect(Stream& stream, const PageSelectArgs& args) {
  return cpu::PageSelect(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::CandidateRest(Stream& stream, const PageSelectArgs& args) {
  return cpu::CandidateRest(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::Estimate(Stream& stream, const EstimateArgs& args) {
  return cpu::Estimate(CpuStream::Of(stream), args);
}

absl::Status CpuIndexOps::UnseenMass(Stream& stream, const UnseenMassArgs& args) {
  return cpu::UnseenMass(CpuStream::Of(stream), args);
}

}  // namespace retroinfer
