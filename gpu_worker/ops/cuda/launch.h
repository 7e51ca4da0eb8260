// What the launchers of kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer::cuda {

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether every row of a bf16 matrix can be read and written 8 elements at a time.
inline bool HasAlignedRows(const MatrixView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.row_stride % 8 == 0 &&
         view.cols % 8 == 0;
}

// The status of the launch just made; `what` names it.
inline absl::Status LaunchStatus(std::string_view what) {
  return CudaStatus(cudaGetLastError(), what);
}

}  // namespace retroinfer::cuda
