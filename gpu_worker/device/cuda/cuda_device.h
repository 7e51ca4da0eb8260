// The device of the CUDA backend: one NVIDIA GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

struct CudaDeviceOptions {
  int ordinal = 0;  // among the devices that CUDA_VISIBLE_DEVICES leaves
  // Of the device's whole memory, for everything this process allocates there.
  double memory_utilization = 0.9;
};

// Threads: all methods may be called from any thread.
// Owns:    its memory pool; must outlive its streams, events and buffers.
class CudaDevice final : public Device {
 public:
  // Returns: FAILED_PRECONDITION without a driver, without such a device, or if its compute
  // capability is below 8.0; RESOURCE_EXHAUSTED if less memory is free than memory_utilization
  // asks for; INVALID_ARGUMENT for a utilization outside (0, 1].
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const CudaDeviceOptions& options);
  ~CudaDevice() override;

  // memory_bytes is what memory_utilization leaves to this process.
  const DeviceInfo& info() const override { return info_; }
  // 10 * major + minor.
  int compute_capability() const { return compute_capability_; }

  // Stream-ordered memory of a pool that keeps what is freed, so neither allocating nor freeing
  // waits for kernels. What is freed may be reused at once: its users must have finished.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, MemoryPurpose purpose) override;
  // Page-locked.
  absl::StatusOr<HostBuffer> AllocateHost(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Synchronize(const Event& event) override;
  absl::StatusOr<bool> IsDone(const Event& event) override;
  absl::Status Upload(Stream& stream, std::span<const std::byte> host,
                      DeviceSpan<std::byte> device) override;
  absl::Status Download(Stream& stream, DeviceSpan<const std::byte> device,
                        std::span<std::byte> host) override;
  bool can_capture() const override { return true; }
  // Other threads may use the device meanwhile; what they enqueue is not recorded.
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& stream, absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Launch(Stream& stream, Graph& graph) override;
  // Registers in pieces of 64 GiB: larger ones fail on current drivers.
  absl::StatusOr<DeviceSpan<std::byte>> MapHost(std::span<std::byte> host) override;
  void UnmapHost(std::span<std::byte> host) override;
  size_t allocated_bytes(MemoryPurpose purpose) const override;
  // With contexts, kernels, graphs, the pool's free memory, and other processes' memory.
  absl::StatusOr<size_t> MemoryInUse() const override;

 protected:
  void Free(std::byte* data, size_t bytes, MemoryPurpose purpose) override;
  void FreeHost(std::byte* data, size_t bytes) override;

 private:
  CudaDevice() = default;

  int ordinal_ = 0;
  int compute_capability_ = 0;
  DeviceInfo info_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t pool_stream_ = nullptr;  // orders allocations only

  mutable absl::Mutex mutex_;
  std::array<size_t, static_cast<size_t>(MemoryPurpose::kCount)> allocated_
      ABSL_GUARDED_BY(mutex_) = {};
  size_t total_allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::span<std::byte>> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer
