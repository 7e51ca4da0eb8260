// Bound by reading the weight once: out_features * in_features / 2 bytes, and 4 for each group.
#include "gpu_worker/ops/model/cuda/cluster_gemm.h"
#include "gpu_worker/ops/model/cuda/cluster_gemm_kernel.cuh"

namespace retroinfer::cuda {
namespace {

using Steps = ClusterGemms<Int4Form<1>, kBlocksOfCluster>;
using Words = ClusterGemms<Int4Form<4>, kBlocksOfCluster>;

}  // namespace

bool PrepareClusterGemmInt4() { return Steps::Prepare() && Words::Prepare(); }

cudaError_t LaunchClusterGemmInt4(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                                  cudaStream_t stream) {
  return weight.form == GroupedForm::kInt4Words ? Words::Launch(gemm, weight, stream)
                                                : Steps::Launch(gemm, weight, stream);
}

}  // namespace retroinfer::cuda
