// A plain read of device memory: the limit that kernels bound by memory are compared with.
#pragma once

#include <cstddef>

#include "gpu_worker/device/cuda/cuda_stream.h"

namespace retroinfer::bench {

// Reads `bytes` (a multiple of 16) once; `sink` [1] keeps the compiler from leaving the reads out.
void LaunchRead(const std::byte* data, size_t bytes, float* sink, CudaStream& stream);

}  // namespace retroinfer::bench
