// The operations on the wave index of the CUDA backend: a thin dispatch to one function each.
#pragma once

#include "gpu_worker/ops/index/index_ops.h"

namespace retroinfer {

class CudaIndexOps final : public IndexOps {
 public:
  size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim, int32_t num_tokens,
                                 int32_t num_clusters) const override;
  absl::Status ClusterKeys(Stream& stream, const ClusterKeysArgs& args) override;
  absl::Status WriteSegment(Stream& stream, const WriteSegmentArgs& args) override;
  absl::Status LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) override;
  absl::Status ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) override;
  absl::Status CentroidScore(Stream& stream, const CentroidScoreArgs& args) override;
  absl::Status ClusterSelect(Stream& stream, const ClusterSelectArgs& args) override;
  absl::Status ShareRetrieved(Stream& stream, const ShareRetrievedArgs& args) override;
  absl::Status PageSelect(Stream& stream, const PageSelectArgs& args) override;
  absl::Status CandidateRest(Stream& stream, const PageSelectArgs& args) override;
  size_t EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                              int64_t max_estimated) const override;
  absl::Status Estimate(Stream& stream, const EstimateArgs& args) override;
  absl::Status UnseenMass(Stream& stream, const UnseenMassArgs& args) override;
};

}  // namespace retroinfer
