#include "gpu_worker/device/cuda/gpu_names.h"

#include <cuda_runtime_api.h>

namespace retroinfer::cuda {

std::vector<std::string> GpuNames() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // whoever computes asks again, and says why not
    return {};
  }
  std::vector<std::string> names;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    const bool is_known = cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess;
    names.emplace_back(is_known ? properties.name : "unknown");
  }
  return names;
}

}  // namespace retroinfer::cuda
