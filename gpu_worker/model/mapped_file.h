// A regular file, mapped for reading and open.
//
// The bytes stay valid while the object lives. Nobody may shorten the file meanwhile: the kernel
// answers a read past the new end with SIGBUS.
//
// Threads: immutable after Open; any number of readers.
// Owns:    the mapping and the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace retroinfer {

class MappedFile {
 public:
  // Maps the whole of `path`; an empty file gives an empty span.
  //
  // Returns: NOT_FOUND or PERMISSION_DENIED as the system says; INVALID_ARGUMENT if it is no
  //          regular file (a pipe does not block the call).
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Of the file, for reading; -1 without one.
  int fd() const { return fd_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace retroinfer
