// Reads the beginning of a GGUF file from front to back, and never past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer {

// Threads: one.
class GgufCursor {
 public:
  // `place` is what messages begin with: the file. `bytes` must outlive what is read from them.
  GgufCursor(std::span<const std::byte> bytes, std::string place)
      : bytes_(bytes), place_(std::move(place)) {}

  // Each takes what comes next; `what` says in a message what that was to be.
  //
  // Returns: INVALID_ARGUMENT if the file ends before.
  absl::StatusOr<uint32_t> U32(std::string_view what);
  absl::StatusOr<uint64_t> U64(std::string_view what);
  absl::StatusOr<std::span<const std::byte>> Bytes(uint64_t count, std::string_view what);
  // A length of 64 bits, and so many bytes: also refused beyond `bytes_max`.
  absl::StatusOr<std::string_view> String(uint64_t bytes_max, std::string_view what);

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }
  const std::string& place() const { return place_; }
  // INVALID_ARGUMENT that names the file.
  absl::Status Error(const std::string& problem) const;

 private:
  std::span<const std::byte> bytes_;
  std::string place_;
  size_t offset_ = 0;
};

}  // namespace retroinfer
