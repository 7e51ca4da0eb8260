#include "gpu_worker/ops/index/cuda/cuda_index_ops.h"

#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/cuda/centroid_score.h"
#include "gpu_worker/ops/index/cuda/cluster_keys.h"
#include "gpu_worker/ops/index/cuda/cluster_select.h"
#include "gpu_worker/ops/index/cuda/estimate.h"
#include "gpu_worker/ops/index/cuda/load_segment_index.h"
#include "gpu_worker/ops/index/cuda/page_select.h"
#include "gpu_worker/ops/index/cuda/read_segment_layer.h"
#include "gpu_worker/ops/index/cuda/share_retrieved.h"
#include "gpu_worker/ops/index/cuda/unseen_mass.h"
#include "gpu_worker/ops/index/cuda/write_segment.h"

namespace retroinfer {

size_t CudaIndexOps::ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                             int32_t num_tokens, int32_t num_clusters) const {
  return cuda::ClusterKeysScratchBytes(num_kv_heads, head_dim, num_tokens, num_clusters);
}

absl::Status CudaIndexOps::ClusterKeys(Stream& stream, const ClusterKeysArgs& args) {
  return cuda::ClusterKeys(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::WriteSegment(Stream& stream, const WriteSegmentArgs& args) {
  return cuda::WriteSegment(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) {
  return cuda::LoadSegmentIndex(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) {
  return cuda::ReadSegmentLayer(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::CentroidScore(Stream& stream, const CentroidScoreArgs& args) {
  return cuda::CentroidScore(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::ClusterSelect(Stream& stream, const ClusterSelectArgs& args) {
  return cuda::ClusterSelect(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::ShareRetrieved(Stream& stream, const ShareRetrievedArgs& args) {
  return cuda::ShareRetrieved(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::PageSelect(Stream& stream, const PageSelectArgs& args) {
  return cuda::PageSelect(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::CandidateRest(Stream& stream, const PageSelectArgs& args) {
  return cuda::CandidateRest(CudaStream::Of(stream), args);
}

size_t CudaIndexOps::EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                          int32_t head_dim, int64_t max_estimated) const {
  return cuda::EstimateScratchBytes(max_batch, num_query_heads, head_dim, max_estimated);
}

absl::Status CudaIndexOps::Estimate(Stream& stream, const EstimateArgs& args) {
  return cuda::Estimate(CudaStream::Of(stream), args);
}

absl::Status CudaIndexOps::UnseenMass(Stream& stream, const UnseenMassArgs& args) {
  return cuda::UnseenMass(CudaStream::Of(stream), args);
}

}  // namespace retroinfer
