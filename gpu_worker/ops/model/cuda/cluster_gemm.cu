#include "gpu_worker/ops/model/cuda/cluster_gemm.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"

namespace retroinfer::cuda {
namespace {

struct Available {
  bool bf16 = PrepareClusterGemmBf16();
  bool fp8 = PrepareClusterGemmFp8();
  bool int4 = PrepareClusterGemmInt4();
};

const Available& AvailableForms() {
  static const Available available;
  return available;
}

bool IsAvailable(GroupedForm form) {
  switch (form) {
    case GroupedForm::kBf16:
      return AvailableForms().bf16;
    case GroupedForm::kFp8Features:
    case GroupedForm::kFp8Blocks:
      return AvailableForms().fp8;
    case GroupedForm::kInt4Steps:
    case GroupedForm::kInt4Words:
      return AvailableForms().int4;
    case GroupedForm::kNone:
      break;
  }
  return false;
}

}  // namespace

void PrepareClusterGemm() { (void)AvailableForms(); }

bool TakesClusterGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight) {
  const bool aligned = reinterpret_cast<uintptr_t>(gemm.in) % 16 == 0 && gemm.in_stride % 8 == 0 &&
                       gemm.in_features % 8 == 0;
  return gemm.rows > kTileRows && aligned && IsAvailable(weight.form);
}

cudaError_t LaunchClusterGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                              cudaStream_t stream) {
  switch (weight.form) {
    case GroupedForm::kBf16:
      return LaunchClusterGemmBf16(gemm, weight, stream);
    case GroupedForm::kFp8Features:
    case GroupedForm::kFp8Blocks:
      return LaunchClusterGemmFp8(gemm, weight, stream);
    case GroupedForm::kInt4Steps:
    case GroupedForm::kInt4Words:
      return LaunchClusterGemmInt4(gemm, weight, stream);
    case GroupedForm::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace retroinfer::cuda
