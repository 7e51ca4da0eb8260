// The device of the CPU backend: ordinary memory and threads of this machine.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

struct CpuDeviceOptions {
  int num_threads = 0;            // of the compute streams, their caller included; 0: one a core
  size_t memory_limit_bytes = 0;  // of all allocations together; 0: the machine's memory
};

// Threads: all methods may be called from any thread.
// Owns:    the threads; must outlive its streams and buffers.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);

  const DeviceInfo& info() const override { return info_; }

  // Memory of a large buffer is the system's until it is first touched.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, MemoryPurpose purpose) override;
  absl::StatusOr<HostBuffer> AllocateHost(size_t bytes) override;
  // Compute streams share one set of threads, background streams another of lower priority, and a
  // third of normal priority while they are urgent.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Synchronize(const Event& event) override;
  absl::StatusOr<bool> IsDone(const Event& event) override;
  absl::Status Upload(Stream& stream, std::span<const std::byte> host,
                      DeviceSpan<std::byte> device) override;
  absl::Status Download(Stream& stream, DeviceSpan<const std::byte> device,
                        std::span<std::byte> host) override;
  // Enqueuing is calling: there is nothing to save.
  bool can_capture() const override { return false; }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& stream, absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Launch(Stream& stream, Graph& graph) override;
  // Host memory is device memory here.
  absl::StatusOr<DeviceSpan<std::byte>> MapHost(std::span<std::byte> host) override;
  void UnmapHost(std::span<std::byte> host) override;
  size_t allocated_bytes(MemoryPurpose purpose) const override;
  // What was allocated here: the machine's memory has many users.
  absl::StatusOr<size_t> MemoryInUse() const override;

 protected:
  void Free(std::byte* data, size_t bytes, MemoryPurpose purpose) override;
  void FreeHost(std::byte* data, size_t bytes) override;

 private:
  DeviceInfo info_;
  size_t memory_limit_bytes_;
  ThreadPool compute_pool_;
  ThreadPool background_pool_;
  ThreadPool urgent_pool_;

  mutable absl::Mutex mutex_;
  std::array<size_t, static_cast<size_t>(MemoryPurpose::kCount)> allocated_
      ABSL_GUARDED_BY(mutex_) = {};
  size_t total_allocated_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace retroinfer
