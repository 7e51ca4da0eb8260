// The CUDA backend's prefill attention (contract in gpu_worker/ops/attention/prefill_attention.h).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/cuda/block_choice_kernels.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention_kernels.h"
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
  // Launches one that Choose() could have returned, or a slower one, over all keys.
  absl::Status Run(PrefillKernel kernel, CudaStream& stream,
                   const PrefillAttentionArgs& args) const;

  // For rows of whole units alone, whose ChoiceLayout fits args.scratch: chooses blocks there, by
  // the kernel that is fastest beside `kernel`; attends to those chosen there.
  absl::Status ChooseBlocks(PrefillKernel kernel, CudaStream& stream,
                            const PrefillAttentionArgs& units) const;
  absl::Status RunChosen(PrefillKernel kernel, CudaStream& stream,
                         const PrefillAttentionArgs& units) const;

 private:
  using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

  PrefillAttentionContext() = default;
  absl::StatusOr<HopperPrefillMaps> MapsOf(const PrefillAttentionArgs& args) const;
  absl::StatusOr<HopperChoiceMaps> ChoiceMapsOf(const PrefillAttentionArgs& units) const;
  // A map of bf16 numbers with boxes of rows of 128 bytes.
  absl::Status Encode(std::byte* data, std::span<const uint64_t> sizes,
                      std::span<const uint64_t> strides, std::span<const uint32_t> box,
                      CUtensorMap& map) const;

  EncodeTiled encode_tiled_ = nullptr;  // null unless the device and the build are for Hopper
};

absl::Status PrefillAttention(PrefillAttentionContext& context, CudaStream& stream,
                              const PrefillAttentionArgs& args);

}  // namespace retroinfer::cuda
