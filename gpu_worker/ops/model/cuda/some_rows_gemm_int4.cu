// Bound by reading the weight once: out_features * in_features / 2 bytes, and 4 for each group.
#include "gpu_worker/ops/model/cuda/some_rows_forms.cuh"

namespace retroinfer::cuda {

const SomeRowsKernels kSomeRowsInt4Steps = SomeRowsOf<Int4Form<1>, 32, 32>::kKernels;

}  // namespace retroinfer::cuda
