// CUDA's error codes as absl::Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace retroinfer {

// OK for cudaSuccess; else a status that names `what` failed. Out of memory: RESOURCE_EXHAUSTED;
// a driver that is too old or a device that is not there: FAILED_PRECONDITION; else INTERNAL.
//
// Some errors (an illegal address, a lost device) end the process's use of the device: every later
// call fails, and what kernels wrote is not to be trusted. Then this function logs and exits.
absl::Status CudaStatus(cudaError_t code, std::string_view what);

}  // namespace retroinfer

// Returns from the calling function if the CUDA call `expression` fails.
#define RETURN_IF_CUDA_ERROR(expression)                          \
  do {                                                            \
    const cudaError_t ri_cuda_code = (expression);                \
    if (ri_cuda_code != cudaSuccess) {                            \
      return ::retroinfer::CudaStatus(ri_cuda_code, #expression); \
    }                                                             \
  } while (false)
