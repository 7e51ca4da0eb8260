// Thread blocks that work on one row together: a thread block cluster (compute capability 9.0),
// whose blocks read each other's shared memory. With one part it is a plain thread block, on every
// device.
#pragma once

#include <cooperative_groups.h>

namespace retroinfer::cuda {

// REQUIRES: the kernel was launched with clusters of kParts blocks where kParts > 1.
template <int kParts>
struct RowParts {
  // Number of this block in its row.
  static __device__ int Index() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kParts > 1)
      return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#endif
    return 0;
  }

  // Waits for all threads of the row. What they wrote to shared memory before can be read after.
  static __device__ void Sync() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kParts > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // The place in part `part` of what lies at `local`, in shared memory, in this one. The part must
  // not end before it was read: a Sync comes after the last read.
  template <typename T>
  static __device__ const T* Of(const T* local, [[maybe_unused]] int part) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kParts > 1) {
      return cooperative_groups::this_cluster().map_shared_rank(const_cast<T*>(local),
                                                                static_cast<unsigned>(part));
    }
#endif
    return local;
  }
};

}  // namespace retroinfer::cuda
