// The wave index: clustering of keys, segments in the arena and their index in device memory, and
// what a decode step asks of it.
//
// All calls as ops.h says.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/index/centroid_score.h"
#include "gpu_worker/ops/index/cluster_keys.h"
#include "gpu_worker/ops/index/cluster_select.h"
#include "gpu_worker/ops/index/estimate.h"
#include "gpu_worker/ops/index/load_segment_index.h"
#include "gpu_worker/ops/index/page_select.h"
#include "gpu_worker/ops/index/read_segment_layer.h"
#include "gpu_worker/ops/index/share_retrieved.h"
#include "gpu_worker/ops/index/unseen_mass.h"
#include "gpu_worker/ops/index/write_segment.h"

namespace retroinfer {

class IndexOps {
 public:
  virtual ~IndexOps() = default;

  virtual size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                         int32_t num_tokens, int32_t num_clusters) const = 0;
  virtual absl::Status ClusterKeys(Stream& stream, const ClusterKeysArgs& args) = 0;
  virtual absl::Status WriteSegment(Stream& stream, const WriteSegmentArgs& args) = 0;
  virtual absl::Status LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) = 0;
  virtual absl::Status ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) = 0;
  virtual absl::Status CentroidScore(Stream& stream, const CentroidScoreArgs& args) = 0;
  virtual absl::Status ClusterSelect(Stream& stream, const ClusterSelectArgs& args) = 0;
  virtual absl::Status ShareRetrieved(Stream& stream, const ShareRetrievedArgs& args) = 0;
  virtual absl::Status PageSelect(Stream& stream, const PageSelectArgs& args) = 0;
  virtual absl::Status CandidateRest(Stream& stream, const PageSelectArgs& args) = 0;
  virtual size_t EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                                      int64_t max_estimated) const = 0;
  virtual absl::Status Estimate(Stream& stream, const EstimateArgs& args) = 0;
  virtual absl::Status UnseenMass(Stream& stream, const UnseenMassArgs& args) = 0;
};

}  // namespace retroinfer
