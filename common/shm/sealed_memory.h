// Shared memory without a name: a sealed memfd and its mapping.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// What other threads tell an allocation, and what they learn of it.
struct AllocationWatch {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done_bytes{0};  // of twice the size: each page is reserved, then populated
};

// A memfd whose size can never change, mapped readable and writable.
//
// Threads: the methods on one thread at a time; the bytes are shared and need their own protocol.
// Owns:    the descriptor and the mapping.
//
// All memory is allocated when it is made, so that a machine that is too small fails here and not
// with SIGBUS later.
class SealedMemory {
 public:
  // Makes zeroed memory of `bytes` bytes. `name` shows up in /proc only. Gives up soon after any
  // thread has set `watch->stop`; null: nobody watches.
  //
  // REQUIRES: bytes > 0 and a multiple of 4096.
  // Returns:  RESOURCE_EXHAUSTED if that much memory is not available; the message has the numbers.
  //           CANCELLED if it was stopped.
  // Cost:     a page fault per 4 KiB, on up to `num_threads` threads.
  static absl::StatusOr<SealedMemory> Create(const std::string& name, uint64_t bytes,
                                             int num_threads, AllocationWatch* watch = nullptr);

  // Maps memory that another process made and takes the descriptor over. Hostile until checked.
  //
  // Returns: INVALID_ARGUMENT unless the descriptor is a memfd sealed against shrinking, growing
  //          and further seals, open for writing, completely allocated, and of a size that is a
  //          multiple of 4096, more than 0 and at most `bytes_max`.
  static absl::StatusOr<SealedMemory> Adopt(UniqueFd fd, uint64_t bytes_max);

  SealedMemory() = default;
  SealedMemory(SealedMemory&& other) noexcept { *this = std::move(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory() { Unmap(); }

  bool valid() const { return data_ != nullptr; }
  int fd() const { return fd_.get(); }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  absl::Status Map(uint64_t bytes);
  void Unmap();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace retroinfer::common
