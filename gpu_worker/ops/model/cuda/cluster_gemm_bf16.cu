// Bound by reading the weight once: 2 * out_features * in_features bytes.
#include "gpu_worker/ops/model/cuda/cluster_gemm.h"
#include "gpu_worker/ops/model/cuda/cluster_gemm_kernel.cuh"

namespace retroinfer::cuda {
namespace {

using Numbers = ClusterGemms<Bf16Form, kBlocksOfCluster>;

}  // namespace

bool PrepareClusterGemmBf16() { return Numbers::Prepare(); }

cudaError_t LaunchClusterGemmBf16(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                                  cudaStream_t stream) {
  return Numbers::Launch(gemm, weight, stream);
}

}  // namespace retroinfer::cuda
