#include "gpu_worker/ops/cuda/apply_evictions.h"
#include "gpu_worker/ops/cuda/centroid_score.h"
#include "gpu_worker/ops/cuda/cluster_select.h"
#include "gpu_worker/ops/cuda/estimate.h"
#include "gpu_worker/ops/cuda/log_snapshot.h"
#include "gpu_worker/ops/cuda/page_lookup.h"
#include "gpu_worker/ops/cuda/release_pages.h"

namespace retroinfer::cuda {

absl::Status CentroidScore(CudaStream&, const CentroidScoreArgs&) {
  return absl::UnimplementedError("CentroidScore");
}
absl::Status ClusterSelect(CudaStream&, const ClusterSelectArgs&) {
  return absl::UnimplementedError("ClusterSelect");
}
size_t EstimateScratchBytes(int32_t, int32_t, int32_t, int64_t) { return 0; }
absl::Status Estimate(CudaStream&, const EstimateArgs&) {
  return absl::UnimplementedError("Estimate");
}
absl::Status PageLookup(CudaStream&, const PageLookupArgs&) {
  return absl::UnimplementedError("PageLookup");
}
absl::Status ApplyEvictions(CudaStream&, const ApplyEvictionsArgs&) {
  return absl::UnimplementedError("ApplyEvictions");
}
absl::Status ReleasePages(CudaStream&, const ReleasePagesArgs&) {
  return absl::UnimplementedError("ReleasePages");
}
absl::Status LogSnapshot(CudaStream&, const LogSnapshotArgs&) {
  return absl::UnimplementedError("LogSnapshot");
}

}  // namespace retroinfer::cuda
