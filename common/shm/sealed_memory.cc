#include "common/shm/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/memory/available_memory.h"
#include "common/process/start_thread.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kAlignment = 4096;
// Smaller shares are not worth a thread.
constexpr uint64_t kBytesPerThreadMin = 16ull << 20;
// Takes some 10 ms: how soon a stop is noticed.
constexpr uint64_t kStep = 64ull << 20;

bool IsStopped(const AllocationWatch* watch) {
  return watch != nullptr && watch->stop.load(std::memory_order_relaxed);
}

void NoteDone(AllocationWatch* watch, uint64_t bytes) {
  if (watch != nullptr) watch->done_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

// Reserves all pages of the file. The kernel takes the file's lock for this, so threads would not
// help; it leaves zeroing to the first touch.
int AllocateAll(int fd, uint64_t bytes, AllocationWatch* watch) {
  for (uint64_t at = 0; at < bytes; at += kStep) {
    if (IsStopped(watch)) return ECANCELED;
    const uint64_t step = std::min(kStep, bytes - at);
    int error;
    do {
      error = ::posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(step));
    } while (error == EINTR);
    if (error != 0) return error;
    NoteDone(watch, step);
  }
  return 0;
}

// Populates a part of new memory: in one call where the kernel can (5.14), else by writing to each
// page.
void Touch(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
#endif
  for (size_t at = 0; at < memory.size(); at += kAlignment) {
    *static_cast<volatile std::byte*>(&memory[at]) = std::byte{0};
  }
}

// Populates all of new memory, unless it is stopped. Zeroing is bound by one core's bandwidth,
// hence the threads.
void TouchAll(std::span<std::byte> memory, int num_threads, AllocationWatch* watch) {
  const uint64_t shares = std::clamp<uint64_t>(memory.size() / kBytesPerThreadMin, 1,
                                               static_cast<uint64_t>(std::max(num_threads, 1)));
  const uint64_t num_pages = memory.size() / kAlignment;
  std::atomic<uint64_t> next{0};
  RunBeside(shares - 1, [&] {
    for (uint64_t i = next++; i < shares; i = next++) {
      const uint64_t begin = num_pages * i / shares * kAlignment;
      const uint64_t end = num_pages * (i + 1) / shares * kAlignment;
      const std::span<std::byte> part = memory.subspan(begin, end - begin);
      for (uint64_t at = 0; at < part.size() && !IsStopped(watch); at += kStep) {
        const uint64_t step = std::min(kStep, part.size() - at);
        Touch(part.subspan(at, step));
        NoteDone(watch, step);
      }
    }
  });
}

}  // namespace

absl::StatusOr<SealedMemory> SealedMemory::Create(const std::string& name, uint64_t bytes,
                                                  int num_threads, AllocationWatch* watch) {
  RI_CHECK(bytes > 0 && bytes % kAlignment == 0);
  RETURN_IF_ERROR(RequireAvailableMemory(bytes, name));
  SealedMemory memory;
  memory.fd_.Reset(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_.valid()) return ErrnoStatus(errno, "memfd_create");
  if (::ftruncate(memory.fd_.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("setting the size of ", name, " to ", bytes, " bytes"));
  }
  const absl::Status stopped =
      absl::CancelledError(absl::StrCat("stopped while ", name, " was allocated"));
  if (const int error = AllocateAll(memory.fd_.get(), bytes, watch); error != 0) {
    if (error == ECANCELED) return stopped;
    return ErrnoStatus(error, absl::StrCat("allocating ", bytes, " bytes for ", name));
  }
  if (::fcntl(memory.fd_.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, absl::StrCat("sealing ", name));
  }
  RETURN_IF_ERROR(memory.Map(bytes));
  TouchAll(memory.bytes(), num_threads, watch);
  if (IsStopped(watch)) return stopped;
  return memory;
}

absl::StatusOr<SealedMemory> SealedMemory::Adopt(UniqueFd fd, uint64_t bytes_max) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError("shared memory: the descriptor is not a memfd");
  }
  if ((seals & kSeals) != kSeals || (seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: seals are ", seals, ", needs ", kSeals,
                     " (shrink, grow, seal) and no seal against writing"));
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
    return absl::InvalidArgumentError("shared memory: the descriptor is not open for writing");
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "shared memory: fstat");
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (info.st_size <= 0 || bytes > bytes_max || bytes % kAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory: size is ", info.st_size,
                                                   " bytes, needs a multiple of ", kAlignment,
                                                   ", more than 0, at most ", bytes_max));
  }
  if (static_cast<uint64_t>(info.st_blocks) * 512 < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory: only ",
                                                   uint64_t(info.st_blocks) * 512, " of ", bytes,
                                                   " bytes are allocated"));
  }
  SealedMemory memory;
  memory.fd_ = std::move(fd);
  RETURN_IF_ERROR(memory.Map(bytes));
  return memory;
}

SealedMemory& SealedMemory::operator=(SealedMemory&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

absl::Status SealedMemory::Map(uint64_t bytes) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), /*offset=*/0);
  if (address == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", bytes, " bytes of shared memory"));
  }
  data_ = static_cast<std::byte*>(address);
  size_ = bytes;
  return absl::OkStatus();
}

void SealedMemory::Unmap() {
  if (data_ != nullptr) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace retroinfer::common
