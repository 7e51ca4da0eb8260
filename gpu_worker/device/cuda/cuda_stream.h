// Streams and events of the CUDA backend.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

class CudaEvent final : public Event {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create();
  ~CudaEvent() override;

  cudaEvent_t get() const { return event_; }

 private:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}

  const cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  // REQUIRES: `stream` is of a CudaDevice.
  static CudaStream& Of(Stream& stream) { return static_cast<CudaStream&>(stream); }

  // Background streams have the lowest priority, compute streams the highest.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(StreamKind kind);
  // Finishes the work enqueued so far.
  ~CudaStream() override;

  cudaStream_t get() const { return stream_; }

  absl::Status Record(Event& event) override;
  absl::Status Wait(const Event& event) override;
  absl::Status Synchronize() override;

 private:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}

  const cudaStream_t stream_;
};

}  // namespace retroinfer
