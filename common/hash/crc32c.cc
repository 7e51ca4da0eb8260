#include "common/hash/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace retroinfer::common {

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
  constexpr size_t kCallBytesMax = size_t{1} << 30;  // the library takes an int
  uint32_t inverted = ~crc;
  while (!data.empty()) {
    const size_t size = std::min(data.size(), kCallBytesMax);
    // The library reads only, although its argument is not const.
    auto* const bytes = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data.data()));
    inverted = crc32_iscsi(bytes, static_cast<int>(size), inverted);
    data = data.subspan(size);
  }
  return ~inverted;
}

}  // namespace retroinfer::common
