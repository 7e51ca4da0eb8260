#include "gpu_worker/device/cpu/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cpu/cpu_event.h"
#include "gpu_worker/device/cpu/cpu_stream.h"

namespace retroinfer {
namespace {

constexpr std::align_val_t kAlignment{256};
// From here on memory is mapped: the system gives pages when they are touched, huge ones if it can.
constexpr size_t kMapFromBytes = size_t{1} << 20;
constexpr int kBackgroundNice = 10;

size_t MachineMemoryBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::string ProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

int ThreadCount(int requested) {
  if (requested > 0) return requested;
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

absl::StatusOr<std::byte*> AllocateBytes(size_t bytes) {
  if (bytes < kMapFromBytes) {
    return static_cast<std::byte*>(::operator new(bytes, kAlignment));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return common::ErrnoStatus(errno, absl::StrCat("mapping ", bytes, " bytes"));
  }
  (void)madvise(data, bytes, MADV_HUGEPAGE);  // a system without huge pages uses small ones
  return static_cast<std::byte*>(data);
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : memory_limit_bytes_(options.memory_limit_bytes > 0 ? options.memory_limit_bytes
                                                         : MachineMemoryBytes()),
      compute_pool_(ThreadCount(options.num_threads)),
      background_pool_(ThreadCount(options.num_threads), kBackgroundNice),
      urgent_pool_(ThreadCount(options.num_threads)) {
  info_ = {ProcessorName(), "cpu", memory_limit_bytes_, compute_pool_.num_threads()};
}

absl::StatusOr<DeviceBuffer> CpuDevice::Allocate(size_t bytes, MemoryPurpose purpose) {
  if (bytes == 0) return DeviceBuffer();
  absl::MutexLock lock(&mutex_);
  if (bytes > memory_limit_bytes_ - total_allocated_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        std::string(MemoryPurposeName(purpose)), " needs ", bytes, " bytes of device memory; ",
        total_allocated_, " of ", memory_limit_bytes_,
        " are in use. Allow more memory, or shorter contexts or fewer requests at a time."));
  }
  ASSIGN_OR_RETURN(std::byte * data, AllocateBytes(bytes));
  total_allocated_ += bytes;
  allocated_[static_cast<size_t>(purpose)] += bytes;
  return DeviceBuffer(this, data, bytes, purpose);
}

void CpuDevice::Free(std::byte* data, size_t bytes, MemoryPurpose purpose) {
  if (bytes < kMapFromBytes) {
    ::operator delete(data, kAlignment);
  } else {
    munmap(data, bytes);
  }
  absl::MutexLock lock(&mutex_);
  total_allocated_ -= bytes;
  allocated_[static_cast<size_t>(purpose)] -= bytes;
}

absl::StatusOr<HostBuffer> CpuDevice::AllocateHost(size_t bytes) {
  if (bytes == 0) return HostBuffer();
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  std::memset(data, 0, bytes);
  return HostBuffer(this, data, bytes);
}

void CpuDevice::FreeHost(std::byte* data, size_t /*bytes*/) { ::operator delete(data, kAlignment); }

absl::StatusOr<std::unique_ptr<Graph>> CpuDevice::Capture(
    Stream& /*stream*/, absl::FunctionRef<absl::Status()> /*enqueue*/) {
  return absl::UnimplementedError("the CPU backend records no graphs");
}

absl::Status CpuDevice::Launch(Stream& /*stream*/, Graph& /*graph*/) {
  return absl::UnimplementedError("the CPU backend records no graphs");
}

absl::StatusOr<std::unique_ptr<Stream>> CpuDevice::CreateStream(StreamKind kind) {
  ThreadPool* pool = kind == StreamKind::kCompute ? &compute_pool_ : &background_pool_;
  return std::make_unique<CpuStream>(kind, pool, &urgent_pool_);
}

absl::StatusOr<std::unique_ptr<Event>> CpuDevice::CreateEvent() {
  return std::make_unique<CpuEvent>();
}

absl::Status CpuDevice::Synchronize(const Event& event) {
  const EventState& state = *static_cast<const CpuEvent&>(event).state();
  state.WaitFor(state.recorded());
  return absl::OkStatus();
}

absl::StatusOr<bool> CpuDevice::IsDone(const Event& event) {
  return static_cast<const CpuEvent&>(event).state()->IsReached();
}

absl::Status CpuDevice::Upload(Stream& stream, std::span<const std::byte> host,
                               DeviceSpan<std::byte> device) {
  if (host.size() != device.size()) {
    return absl::InvalidArgumentError(absl::StrCat("upload of ", host.size(), " bytes to ",
                                                   device.size(), " bytes of device memory"));
  }
  return static_cast<CpuStream&>(stream).Launch([host, device](ThreadPool&) {
    if (!host.empty()) std::memcpy(device.device_data(), host.data(), host.size());
  });
}

absl::Status CpuDevice::Download(Stream& stream, DeviceSpan<const std::byte> device,
                                 std::span<std::byte> host) {
  if (host.size() != device.size()) {
    return absl::InvalidArgumentError(absl::StrCat("download of ", device.size(), " bytes to ",
                                                   host.size(), " bytes of host memory"));
  }
  return static_cast<CpuStream&>(stream).Launch([host, device](ThreadPool&) {
    if (!host.empty()) std::memcpy(host.data(), device.device_data(), host.size());
  });
}

absl::StatusOr<DeviceSpan<std::byte>> CpuDevice::MapHost(std::span<std::byte> host) {
  return DeviceSpan<std::byte>(host.data(), host.size());
}

void CpuDevice::UnmapHost(std::span<std::byte>) {}

size_t CpuDevice::allocated_bytes(MemoryPurpose purpose) const {
  absl::MutexLock lock(&mutex_);
  return allocated_[static_cast<size_t>(purpose)];
}

absl::StatusOr<size_t> CpuDevice::MemoryInUse() const {
  absl::MutexLock lock(&mutex_);
  return total_allocated_;
}

}  // namespace retroinfer
