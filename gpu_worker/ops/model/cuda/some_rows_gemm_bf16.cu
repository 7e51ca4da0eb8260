// Bound by reading the weight once: 2 * out_features * in_features bytes.
#include "gpu_worker/ops/model/cuda/some_rows_forms.cuh"

namespace retroinfer::cuda {

const SomeRowsKernels kSomeRowsBf16 = SomeRowsOf<Bf16Form, 4, 8, 1, 4>::kKernels;

}  // namespace retroinfer::cuda
