// Bound by reading the weight once: 2 * out_features * in_features bytes.
#include "gpu_worker/ops/model/cuda/some_rows_forms.cuh"

namespace retroinfer::cuda {

const SomeRowsKernels kSomeRowsBf16 = SomeRowsOf<Bf16Form, kAllRows, kAllRows>::kKernels;

}  // namespace retroinfer::cuda
