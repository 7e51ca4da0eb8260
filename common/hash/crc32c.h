// CRC-32C (Castagnoli, RFC 3720): the checksum of everything that lies on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace retroinfer::common {

// Returns the CRC-32C of `data`, continuing from `crc`: Crc32c(b, Crc32c(a)) is that of a then b.
// Every single-bit error and every burst of up to 32 bits changes it. Computed by ISA-L.
//
// Cost: bound by memory.
uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc = 0);

}  // namespace retroinfer::common
