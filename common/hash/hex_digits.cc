#include "common/hash/hex_digits.h"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace retroinfer::common {

std::optional<std::string> BytesOfHexDigits(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(digits.size() / 2);
  for (size_t i = 0; i < digits.size(); i += 2) {
    uint8_t byte = 0;
    const char* const end = digits.data() + i + 2;
    const std::from_chars_result read = std::from_chars(digits.data() + i, end, byte, 16);
    if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace retroinfer::common
