#include "gpu_worker/device/cuda/cuda_device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_graph.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"

namespace retroinfer {
namespace {

constexpr int kMinComputeCapability = 80;
constexpr size_t kMaxRegisteredBytes = size_t{64} << 30;

double Gib(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// Undoes the registration of the leading `bytes` of `host`.
void Unregister(std::span<std::byte> host, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kMaxRegisteredBytes) {
    (void)cudaHostUnregister(host.data() + at);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const CudaDeviceOptions& options) {
  if (!(options.memory_utilization > 0 && options.memory_utilization <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "GPU memory utilization must be above 0 and at most 1, is ", options.memory_utilization));
  }
  int count = 0;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceCount(&count));
  if (options.ordinal < 0 || options.ordinal >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("no GPU number ", options.ordinal, ": there are ", count));
  }
  auto device = absl::WrapUnique(new CudaDevice());
  device->ordinal_ = options.ordinal;
  RETURN_IF_CUDA_ERROR(cudaSetDevice(options.ordinal));
  cudaDeviceProp properties;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, options.ordinal));
  device->compute_capability_ = 10 * properties.major + properties.minor;
  if (device->compute_capability_ < kMinComputeCapability) {
    return absl::FailedPreconditionError(absl::StrCat(properties.name, " has compute capability ",
                                                      properties.major, ".", properties.minor,
                                                      "; this server needs 8.0 (Ampere) or later"));
  }
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  const auto limit =
      static_cast<size_t>(static_cast<double>(total_bytes) * options.memory_utilization);
  if (limit > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: %.1f of %.1f GiB are free, a utilization of %.2f needs %.1f GiB. End what else uses "
        "the GPU, or lower --gpu-memory-utilization",
        properties.name, Gib(free_bytes), Gib(total_bytes), options.memory_utilization,
        Gib(limit)));
  }
  device->info_ = {properties.name, "cuda", limit, properties.multiProcessorCount};

  cudaMemPoolProps pool{};
  pool.allocType = cudaMemAllocationTypePinned;
  pool.location = {cudaMemLocationTypeDevice, options.ordinal};
  RETURN_IF_CUDA_ERROR(cudaMemPoolCreate(&device->pool_, &pool));
  uint64_t keep = std::numeric_limits<uint64_t>::max();
  RETURN_IF_CUDA_ERROR(
      cudaMemPoolSetAttribute(device->pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&device->pool_stream_, cudaStreamNonBlocking));
  return device;
}

CudaDevice::~CudaDevice() {
  // A registration that outlives its memory makes copies fail whose memory comes to lie there.
  for (const std::span<std::byte> host : mapped_) Unregister(host, host.size());
  if (pool_stream_ != nullptr) {
    (void)cudaStreamSynchronize(pool_stream_);
    (void)cudaStreamDestroy(pool_stream_);
  }
  if (pool_ != nullptr) (void)cudaMemPoolDestroy(pool_);
}

absl::StatusOr<DeviceBuffer> CudaDevice::Allocate(size_t bytes, MemoryPurpose purpose) {
  if (bytes == 0) return DeviceBuffer();
  absl::MutexLock lock(&mutex_);
  const auto exhausted = [&](size_t limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        std::string(MemoryPurposeName(purpose)), " needs ", bytes, " bytes of device memory; ",
        total_allocated_, " of ", limit,
        " are in use. Allow more memory, or shorter contexts or fewer requests at a time."));
  };
  if (bytes > info_.memory_bytes - std::min(info_.memory_bytes, total_allocated_)) {
    return exhausted(info_.memory_bytes);
  }
  void* data = nullptr;
  const cudaError_t code = cudaMallocFromPoolAsync(&data, bytes, pool_, pool_stream_);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return exhausted(info_.memory_bytes);
  }
  RETURN_IF_ERROR(CudaStatus(code, "allocating device memory"));
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(pool_stream_));
  total_allocated_ += bytes;
  allocated_[static_cast<size_t>(purpose)] += bytes;
  return DeviceBuffer(this, static_cast<std::byte*>(data), bytes, purpose);
}

void CudaDevice::Free(std::byte* data, size_t bytes, MemoryPurpose purpose) {
  absl::MutexLock lock(&mutex_);
  (void)cudaFreeAsync(data, pool_stream_);
  total_allocated_ -= bytes;
  allocated_[static_cast<size_t>(purpose)] -= bytes;
}

absl::StatusOr<HostBuffer> CudaDevice::AllocateHost(size_t bytes) {
  if (bytes == 0) return HostBuffer();
  void* data = nullptr;
  RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_));
  RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                             absl::StrCat("allocating ", bytes, " bytes of page-locked memory")));
  std::memset(data, 0, bytes);
  return HostBuffer(this, static_cast<std::byte*>(data), bytes);
}

void CudaDevice::FreeHost(std::byte* data, size_t /*bytes*/) { (void)cudaFreeHost(data); }

absl::StatusOr<std::unique_ptr<Graph>> CudaDevice::Capture(
    Stream& stream, absl::FunctionRef<absl::Status()> enqueue) {
  return CudaGraph::Capture(static_cast<CudaStream&>(stream), enqueue);
}

absl::Status CudaDevice::Launch(Stream& stream, Graph& graph) {
  return CudaStatus(
      cudaGraphLaunch(static_cast<CudaGraph&>(graph).get(), static_cast<CudaStream&>(stream).get()),
      "launching a graph");
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream(StreamKind kind) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_));
  return CudaStream::Create(kind);
}

absl::StatusOr<std::unique_ptr<Event>> CudaDevice::CreateEvent() {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_));
  return CudaEvent::Create();
}

absl::Status CudaDevice::Synchronize(const Event& event) {
  return CudaStatus(cudaEventSynchronize(static_cast<const CudaEvent&>(event).get()),
                    "waiting for an event");
}

absl::StatusOr<bool> CudaDevice::IsDone(const Event& event) {
  const cudaError_t code = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
  if (code == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(code, "asking for an event"));
  return true;
}

absl::Status CudaDevice::Upload(Stream& stream, std::span<const std::byte> host,
                                DeviceSpan<std::byte> device) {
  if (host.size() != device.size()) {
    return absl::InvalidArgumentError(absl::StrCat("upload of ", host.size(), " bytes to ",
                                                   device.size(), " bytes of device memory"));
  }
  if (host.empty()) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(device.device_data(), host.data(), host.size(),
                                    cudaMemcpyHostToDevice, static_cast<CudaStream&>(stream).get()),
                    "copying to the device");
}

absl::Status CudaDevice::Download(Stream& stream, DeviceSpan<const std::byte> device,
                                  std::span<std::byte> host) {
  if (host.size() != device.size()) {
    return absl::InvalidArgumentError(absl::StrCat("download of ", device.size(), " bytes to ",
                                                   host.size(), " bytes of host memory"));
  }
  if (host.empty()) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(host.data(), device.device_data(), host.size(),
                                    cudaMemcpyDeviceToHost, static_cast<CudaStream&>(stream).get()),
                    "copying from the device");
}

absl::StatusOr<DeviceSpan<std::byte>> CudaDevice::MapHost(std::span<std::byte> host) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_));
  for (size_t at = 0; at < host.size(); at += kMaxRegisteredBytes) {
    std::byte* const piece = host.data() + at;
    const size_t bytes = std::min(kMaxRegisteredBytes, host.size() - at);
    absl::Status status = CudaStatus(
        cudaHostRegister(piece, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        absl::StrFormat("page-locking %.1f GiB of host memory", Gib(bytes)));
    void* address = nullptr;
    if (status.ok()) {
      status = CudaStatus(cudaHostGetDevicePointer(&address, piece, 0), "mapping host memory");
      // Pieces must follow each other on the device as they do here.
      if (status.ok() && address != piece) {
        status = absl::FailedPreconditionError(
            "this GPU sees host memory at other addresses than the processor; it needs unified "
            "addressing");
      }
      if (!status.ok()) (void)cudaHostUnregister(piece);
    }
    if (!status.ok()) {
      Unregister(host, at);
      return status;
    }
  }
  absl::MutexLock lock(&mutex_);
  mapped_.push_back(host);
  return DeviceSpan<std::byte>(host.data(), host.size());
}

void CudaDevice::UnmapHost(std::span<std::byte> host) {
  Unregister(host, host.size());
  absl::MutexLock lock(&mutex_);
  std::erase_if(mapped_, [&](std::span<std::byte> one) { return one.data() == host.data(); });
}

size_t CudaDevice::allocated_bytes(MemoryPurpose purpose) const {
  absl::MutexLock lock(&mutex_);
  return allocated_[static_cast<size_t>(purpose)];
}

absl::StatusOr<size_t> CudaDevice::MemoryInUse() const {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_));
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  return total_bytes - free_bytes;
}

}  // namespace retroinfer
