// A plain read of device memory: the limit that kernels bound by memory are compared with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace retroinfer::bench {

// Reads `bytes` (a multiple of 16) once; `sink` [1] keeps the compiler from leaving the reads out.
void LaunchRead(const std::byte* data, size_t bytes, float* sink, cudaStream_t stream);

}  // namespace retroinfer::bench
