#include <cstdint>

#include "gpu_worker/ops/model/cuda/some_rows_gemm.h"

namespace retroinfer::cuda {
namespace {

// Of the forms that gain; null of the others.
const SomeRowsKernels* KernelsOf(GroupedForm form) {
  switch (form) {
    case GroupedForm::kBf16:
      return &kSomeRowsBf16;
    case GroupedForm::kFp8Features:
      return &kSomeRowsFp8Features;
    case GroupedForm::kFp8Blocks:
      return &kSomeRowsFp8Blocks;
    case GroupedForm::kInt4Steps:
      return &kSomeRowsInt4Steps;
    case GroupedForm::kInt4Words:
    case GroupedForm::kNone:
      break;
  }
  return nullptr;
}

bool AreAvailable() {
  static const bool available = [] {
    const bool bf16 = kSomeRowsBf16.prepare();
    const bool features = kSomeRowsFp8Features.prepare();
    const bool blocks = kSomeRowsFp8Blocks.prepare();
    const bool int4 = kSomeRowsInt4Steps.prepare();
    return bf16 && features && blocks && int4;
  }();
  return available;
}

}  // namespace

void PrepareSomeRowsGemm() { (void)AreAvailable(); }

bool TakesSomeRowsGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight) {
  constexpr int64_t kFewRows = 16;
  const bool aligned = reinterpret_cast<uintptr_t>(gemm.in) % 16 == 0 && gemm.in_stride % 8 == 0 &&
                       gemm.in_features % 8 == 0;
  const SomeRowsKernels* const kernels = KernelsOf(weight.form);
  if (gemm.rows <= kFewRows || !aligned || kernels == nullptr || !AreAvailable()) return false;
  return kernels->takes(gemm);
}

cudaError_t LaunchSomeRowsGemm(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                               cudaStream_t stream) {
  return KernelsOf(weight.form)->launch(gemm, weight, stream);
}

}  // namespace retroinfer::cuda
