// Bound by reading the weight once: out_features * in_features bytes.
#include "gpu_worker/ops/model/cuda/some_rows_forms.cuh"

namespace retroinfer::cuda {

const SomeRowsKernels kSomeRowsFp8Features = SomeRowsOf<Fp8Form<false>, 2, 16, 1, 2>::kKernels;
const SomeRowsKernels kSomeRowsFp8Blocks = SomeRowsOf<Fp8Form<true>, 2, 16, 1, 2>::kKernels;

}  // namespace retroinfer::cuda
