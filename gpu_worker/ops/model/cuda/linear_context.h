// What the CUDA backend's matrix products share.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/cuda/cublas_lt.h"
#include "gpu_worker/ops/model/cuda/cublas_product.h"

namespace retroinfer::cuda {

// Handle, workspaces and chosen algorithms.
//
// Threads: any.
class LinearContext {
 public:
  // Takes memory for the workspaces of two streams from `device`, which must outlive it.
  // UNAVAILABLE without cuBLASLt.
  static absl::StatusOr<std::unique_ptr<LinearContext>> Create(CudaDevice& device);
  ~LinearContext();

  CudaDevice& device() const { return device_; }
  const CublasLt& lt() const { return lt_; }
  cublasLtHandle_t handle() const { return handle_; }

  // The workspace of a stream. Streams beyond the first two get theirs at the first call.
  absl::StatusOr<DeviceSpan<std::byte>> Workspace(const CudaStream& stream);

  // Memory of a stream for a tile of weights. PrepareTile, while weights are prepared, takes it for
  // the stream that comes first; others get theirs at the first call.
  absl::Status PrepareTile(size_t bytes);
  absl::StatusOr<DeviceSpan<std::byte>> Tile(const CudaStream& stream);

  // Returns null where cuBLASLt has no algorithm that adds every element's products in one order.
  // `scales`: see ChooseAlgorithm.
  absl::StatusOr<const cublasLtMatmulAlgo_t*> Algorithm(const ProductShape& shape,
                                                        const float* scales = nullptr);

 private:
  LinearContext(CudaDevice& device, const CublasLt& lt) : device_(device), lt_(lt) {}

  CudaDevice& device_;
  const CublasLt& lt_;
  cublasLtHandle_t handle_ = nullptr;

  absl::Mutex mutex_;
  std::vector<DeviceBuffer> free_workspaces_ ABSL_GUARDED_BY(mutex_);
  std::map<cudaStream_t, DeviceBuffer> workspaces_ ABSL_GUARDED_BY(mutex_);
  size_t tile_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the largest tile there is
  DeviceBuffer free_tile_ ABSL_GUARDED_BY(mutex_);
  std::map<cudaStream_t, DeviceBuffer> tiles_ ABSL_GUARDED_BY(mutex_);
  std::map<ProductShape, std::optional<cublasLtMatmulAlgo_t>> algorithms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::cuda
