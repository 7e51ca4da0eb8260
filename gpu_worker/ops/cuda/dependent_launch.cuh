// Programmatic dependent launch (compute capability 9.0): a kernel's blocks start while the kernel
// before it on the stream still runs, so that its launch, and what it can read by itself (weights),
// cost no time of their own. On older devices it is a plain launch.
//
// What a kernel launched by LaunchDependent must keep to:
// * No thread reads what another kernel may have written, or writes anything that another kernel
//   may read or write, before it has called AwaitLastKernel: weights alone may be read earlier.
// * Some thread of it always calls AwaitLastKernel. A kernel's end then implies the end of all
//   kernels before it, so it is enough to await the last one.
//
// AllowNextKernel, called early, lets the next kernel's blocks in as soon as all blocks of this one
// have started; without it they come when this one ends.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace retroinfer::cuda {

__device__ inline void AllowNextKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Returns when the kernels before this one have ended and what they wrote can be read.
__device__ inline void AwaitLastKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Whether this process's device starts kernels early.
inline bool StartsKernelsEarly() {
  static const bool early = [] {
    int device = 0, capability = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           capability >= 9;
  }();
  return early;
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = true;  // false for a plain launch, as behind a wait for another stream
};

template <typename... Params, typename... Args>
cudaError_t LaunchDependent(const LaunchShape& shape, void (*kernel)(Params...),
                            const Args&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = shape.early && StartsKernelsEarly() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace retroinfer::cuda
