// The CUDA backend's prefill attention (contract in gpu_worker/ops/attention/prefill_attention.h).
#pragma once

#include <cuda.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/prefill_attention.h"

namespace retroinfer::cuda {

// From the one that runs everything to the one that is fastest where it runs.
enum class PrefillKernel { kPlain, kWarp, kHopper };

// What the device can run.
//
// Threads: any; const after construction.
class PrefillAttentionContext {
 public:
  // Returns: FAILED_PRECONDITION if the driver lacks what the device's fastest kernel needs.
  static absl::StatusOr<std::unique_ptr<PrefillAttentionContext>> Create(CudaDevice& device);

  // The fastest for these arguments, which have been checked.
  PrefillKernel Choose(const PrefillAttentionArgs& args) const;
  // Launches one that Choose() could have returned, or a slower one.
  absl::Status Run(PrefillKernel kernel, CudaStream& stream,
                   const PrefillAttentionArgs& args) const;

 private:
  using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

  PrefillAttentionContext() = default;
  absl::Status RunHopper(CudaStream& stream, const PrefillAttentionArgs& args) const;

  EncodeTiled encode_tiled_ = nullptr;  // null unless the device and the build are for Hopper
};

absl::Status PrefillAttention(PrefillAttentionContext& context, CudaStream& stream,
                              const PrefillAttentionArgs& args);

}  // namespace retroinfer::cuda
