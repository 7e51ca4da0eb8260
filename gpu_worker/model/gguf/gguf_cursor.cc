#include "gpu_worker/model/gguf/gguf_cursor.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {

absl::Status GgufCursor::Error(const std::string& problem) const {
  return absl::InvalidArgumentError(absl::StrCat(place_, ": ", problem));
}

absl::StatusOr<std::span<const std::byte>> GgufCursor::Bytes(uint64_t count,
                                                             std::string_view what) {
  if (count > remaining()) {
    return Error(absl::StrCat("ends within ", std::string(what), ", at byte ", bytes_.size(),
                              "; is the file complete?"));
  }
  const auto taken = bytes_.subspan(offset_, static_cast<size_t>(count));
  offset_ += taken.size();
  return taken;
}

absl::StatusOr<uint32_t> GgufCursor::U32(std::string_view what) {
  static_assert(std::endian::native == std::endian::little);
  ASSIGN_OR_RETURN(const auto bytes, Bytes(sizeof(uint32_t), what));
  uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

absl::StatusOr<uint64_t> GgufCursor::U64(std::string_view what) {
  ASSIGN_OR_RETURN(const auto bytes, Bytes(sizeof(uint64_t), what));
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

absl::StatusOr<std::string_view> GgufCursor::String(uint64_t bytes_max, std::string_view what) {
  ASSIGN_OR_RETURN(const uint64_t size, U64(what));
  if (size > bytes_max) {
    return Error(absl::StrCat(std::string(what), " has ", size, " bytes; at most ", bytes_max,
                              " are accepted"));
  }
  ASSIGN_OR_RETURN(const auto bytes, Bytes(size, what));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace retroinfer
