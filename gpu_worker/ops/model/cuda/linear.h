// The CUDA backend's matrix products (contract in gpu_worker/ops/model/linear.h).
//
// Weights and biases are kept in bf16: those given as f32 or f16 are rounded; or weights in 8 bits.
// Sums are f32; `out` may be bf16 or f32. Few rows (decode) go through a kernel of our own that
// reads the weight once and needs no workspace; many (prefill) through cuBLASLt with one algorithm
// for each shape of weight, whatever the number of rows, so that rows do not depend on each other
// in either. Of weights in 8 bits it gets tiles unpacked to bf16 (fp8_tiles.h), or the codes, with
// activations in codes, too (fp8_activations.h).
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
#include "gpu_worker/ops/model/gated_linear.h"
#include "gpu_worker/ops/model/linear.h"

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

// Takes the memory of the weights from the context's device. Waits for the copy.
absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext& context,
                                                              const LinearWeights& weights);
// REQUIRES: args.linear comes from PrepareLinear with the same context.
absl::Status Linear(LinearContext& context, CudaStream& stream, const LinearArgs& args);

// Whether GatedLinear takes these arguments, which CheckGatedLinear has passed: that depends on
// `decode`, on the weight, and on how rows are aligned, not on how many there are.
bool FusesGatedLinear(const GatedLinearArgs& args);
// REQUIRES: FusesGatedLinear(args). Leaves gate_up alone.
absl::Status GatedLinear(CudaStream& stream, const GatedLinearArgs& args);

}  // namespace retroinfer::cuda
