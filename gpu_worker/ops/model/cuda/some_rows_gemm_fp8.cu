// Bound by reading the weight once: out_features * in_features bytes.
#include "gpu_worker/ops/model/cuda/some_rows_forms.cuh"

namespace retroinfer::cuda {

const SomeRowsKernels kSomeRowsFp8Features =
    SomeRowsOf<Fp8Form<false>, kAllRows, kAllRows>::kKernels;
const SomeRowsKernels kSomeRowsFp8Blocks = SomeRowsOf<Fp8Form<true>, kAllRows, 48>::kKernels;

}  // namespace retroinfer::cuda
