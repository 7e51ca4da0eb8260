#include "gpu_worker/device/cuda/cuda_stream.h"

#include "absl/memory/memory.h"
#include "gpu_worker/device/cuda/cuda_status.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Create() {
  cudaEvent_t event;
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return absl::WrapUnique(new CudaEvent(event));
}

CudaEvent::~CudaEvent() { (void)cudaEventDestroy(event_); }

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(StreamKind kind) {
  int lowest = 0, highest = 0;
  RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream;
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking, kind == StreamKind::kCompute ? highest : lowest));
  return absl::WrapUnique(new CudaStream(stream));
}

CudaStream::~CudaStream() {
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
}

absl::Status CudaStream::Record(Event& event) {
  return CudaStatus(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_),
                    "recording an event");
}

absl::Status CudaStream::Wait(const Event& event) {
  return CudaStatus(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).get()),
                    "waiting for an event");
}

absl::Status CudaStream::Synchronize() {
  return CudaStatus(cudaStreamSynchronize(stream_), "waiting for a stream");
}

}  // namespace retroinfer
