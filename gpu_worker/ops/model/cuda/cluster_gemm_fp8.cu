// Bound by reading the weight once: out_features * in_features bytes.
#include "gpu_worker/ops/model/cuda/cluster_gemm.h"
#include "gpu_worker/ops/model/cuda/cluster_gemm_kernel.cuh"

namespace retroinfer::cuda {
namespace {

using Features = ClusterGemms<Fp8Form<false>, kBlocksOfCluster>;
using Blocks = ClusterGemms<Fp8Form<true>, kBlocksOfCluster>;

}  // namespace

bool PrepareClusterGemmFp8() { return Features::Prepare() && Blocks::Prepare(); }

cudaError_t LaunchClusterGemmFp8(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                                 cudaStream_t stream) {
  return weight.form == GroupedForm::kFp8Blocks ? Blocks::Launch(gemm, weight, stream)
                                                : Features::Launch(gemm, weight, stream);
}

}  // namespace retroinfer::cuda
