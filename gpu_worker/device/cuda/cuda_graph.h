// Recorded work of the CUDA backend.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

class CudaGraph final : public Graph {
 public:
  // As Device::Capture.
  static absl::StatusOr<std::unique_ptr<CudaGraph>> Capture(
      CudaStream& stream, absl::FunctionRef<absl::Status()> enqueue);
  ~CudaGraph() override;
  cudaGraphExec_t get() const { return executable_; }

 private:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  const cudaGraphExec_t executable_;
};

}  // namespace retroinfer
