#include "gpu_worker/ops/cuda/cluster_keys.h"
#include "gpu_worker/ops/cuda/load_segment_index.h"
#include "gpu_worker/ops/cuda/read_segment_layer.h"
#include "gpu_worker/ops/cuda/write_segment.h"

namespace retroinfer::cuda {

absl::Status ClusterKeys(CudaStream&, const ClusterKeysArgs&) {
  return absl::UnimplementedError("ClusterKeys");
}
absl::Status WriteSegment(CudaStream&, const WriteSegmentArgs&) {
  return absl::UnimplementedError("WriteSegment");
}
absl::Status LoadSegmentIndex(CudaStream&, const LoadSegmentIndexArgs&) {
  return absl::UnimplementedError("LoadSegmentIndex");
}
absl::Status ReadSegmentLayer(CudaStream&, const ReadSegmentLayerArgs&) {
  return absl::UnimplementedError("ReadSegmentLayer");
}

}  // namespace retroinfer::cuda
